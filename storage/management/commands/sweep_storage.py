from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from storage.sweep import sweep_storage


class Command(BaseCommand):
    help = "Delete expired files and unreferenced data. The server also does this when it writes files."

    def handle(self, *args: Any, **options: Any) -> None:
        swept = sweep_storage()
        named = f"{swept.files} files, {swept.uploads} uploads, {swept.chunks} chunks"
        self.stdout.write(f"Deleted {named} and {swept.blobs} unreferenced blobs.")
