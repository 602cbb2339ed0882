"""How commands name a key."""

from __future__ import annotations

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q

from openai_api.models import ApiKey


def add_key_argument(parser: CommandParser) -> None:
    parser.add_argument("key", help="Its name, its number, or the beginning of it that the admin shows.")


def chosen_key(text: str) -> ApiKey:
    """CommandError where there is none of that name, or more than one."""
    text = text.replace("\0", "")
    condition = Q(name=text) | Q(prefix=text.rstrip("…"))
    if text.isdecimal() and len(text) < 19:
        condition |= Q(pk=int(text))
    found = list(ApiKey.objects.filter(condition).order_by("pk"))
    if not found:
        raise CommandError(f"There is no API key {text!r}.")
    if len(found) > 1:
        listed = ", ".join(f"{row.pk} ({row.prefix}… of {row.owner})" for row in found)
        raise CommandError(f"There are {len(found)} API keys {text!r}; give the number of one: {listed}.")
    return found[0]
