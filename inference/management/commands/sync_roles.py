"""``manage.py sync_roles``: create the groups and add their permissions, as every ``migrate`` does."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from inference.permissions import GROUPS, ensure_groups


class Command(BaseCommand):
    help = "Create the groups Researchers, Auditors and Admins, and add missing permissions."

    def handle(self, **options: Any) -> None:
        ensure_groups()
        self.stdout.write(self.style.SUCCESS(f"{', '.join(GROUPS)} have the permissions of docs/roles.md."))
