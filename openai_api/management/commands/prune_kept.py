"""``manage.py prune_kept``: delete responses, stored chats and webhook deliveries older than the settings allow."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from openai_api.retention import prune_kept


class Command(BaseCommand):
    help = "Delete stored responses, chat completions and webhook deliveries that are older than the settings allow."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(", ".join(f"{count} {name}" for name, count in prune_kept().items()) + " deleted.")
