"""``manage.py create_api_key``: create an API key and print it once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from openai_api.keys.record import MAX_INTENSITY, MEDIA_UNITS
from openai_api.keys.scopes import Scope
from openai_api.keys.services import create_api_key

LIMITS = (
    "max_concurrent_requests",
    "requests_per_minute",
    "tokens_per_minute",
    "requests_per_day",
    "tokens_per_day",
    *(f"{unit}_per_day" for unit in MEDIA_UNITS),
)
INTENSITIES = {"min_intensity": 0.0, "max_intensity": MAX_INTENSITY}
RIGHTS = ("note", "scopes", "default_profile", "allowed_models", "allowed_profiles", "may_steer_inline", *INTENSITIES)
FIELDS = (*LIMITS, "priority", *RIGHTS)


class Command(BaseCommand):
    help = "Create an API key. It is printed once and can't be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="Name of the key.")
        parser.add_argument("--user", required=True, help="Name of the user who owns the key")
        parser.add_argument("--note", default="", help="What it is for, where it is stored.")
        parser.add_argument(
            "--scope",
            action="append",
            default=[],
            dest="scopes",
            choices=Scope.values,
            help="Repeatable. Default: all of /v1.",
        )
        parser.add_argument("--default-profile", default="", help="Used by requests that name no profile.")
        parser.add_argument("--allow-model", action="append", default=[], dest="allowed_models", metavar="MODEL")
        parser.add_argument("--allow-profile", action="append", default=[], dest="allowed_profiles", metavar="PROFILE")
        parser.add_argument(
            "--allow-inline", action="store_true", dest="may_steer_inline", help="Requests can send their own edits."
        )
        for intensity, default in INTENSITIES.items():
            parser.add_argument("--" + intensity.replace("_", "-"), type=float, default=default)
        parser.add_argument("--expires-in-days", type=int)
        for limit in LIMITS:
            parser.add_argument("--" + limit.replace("_", "-"), type=int)
        parser.add_argument(
            "--priority", type=int, default=0, help="Higher priority runs first, if MILLM_SCHEDULER_POLICY is priority."
        )

    def handle(self, *, name: str, user: str, **options: Any) -> None:
        users = get_user_model()
        try:
            owner = users._default_manager.get_by_natural_key(user)
        except users.DoesNotExist:
            raise CommandError(
                f"The user `{user}` does not exist. Create one with manage.py createsuperuser."
            ) from None
        days = options["expires_in_days"]
        fields = {name: options[name] for name in FIELDS}
        fields["expires_at"] = None if days is None else timezone.now() + timedelta(days=days)
        try:
            created = create_api_key(name=name, owner=owner, **fields)
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from None
        self.stderr.write("This key is shown once. Keep it now.")
        self.stdout.write(created.plain)
