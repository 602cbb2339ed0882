"""``manage.py revoke_api_key``: revoke an API key."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from openai_api.keys.services import add_key_argument, chosen_key, revoke_api_keys
from openai_api.models import ApiKey


class Command(BaseCommand):
    help = "Revoke an API key. This can't be undone."

    def add_arguments(self, parser: CommandParser) -> None:
        add_key_argument(parser)
        parser.add_argument("--reason", required=True, help="Stored with the key and in the audit trail.")

    def handle(self, *, key: str, reason: str, **_: Any) -> None:
        row = chosen_key(key)
        if not revoke_api_keys(keys=ApiKey.objects.filter(pk=row.pk), reason=reason):
            raise CommandError(f"The key {row} was already revoked.")
        self.stdout.write(self.style.SUCCESS(f"Revoked the key {row}. Requests with it are now refused."))
