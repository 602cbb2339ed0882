"""The base class of management commands."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from core.errors import MillmError


class MillmCommand(BaseCommand):
    """A command that prints errors as sentences, without a traceback."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except MillmError as error:
            raise CommandError("\n".join(error.lines)) from error
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
