"""``manage.py rotate_api_key``: give an API key a new secret and print it once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from openai_api.keys.services import add_key_argument, chosen_key, rotate_api_key


class Command(BaseCommand):
    help = "Give an API key a new secret. It is printed once and can't be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        add_key_argument(parser)
        parser.add_argument(
            "--grace-hours", type=float, default=24.0, help="Hours for which the old secret stays valid; 0: not at all."
        )

    def handle(self, *, key: str, grace_hours: float, **_: Any) -> None:
        try:
            created = rotate_api_key(api_key=chosen_key(key), grace=timedelta(hours=grace_hours))
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from None
        except (OverflowError, ValueError) as error:
            raise CommandError(str(error)) from None
        until = created.api_key.old_valid_until
        ends = f"is valid until {until:%Y-%m-%d %H:%M} UTC" if until else "is refused from now on"
        self.stderr.write(f"This key is shown once. Keep it now. The old one {ends}.")
        self.stdout.write(created.plain)
