"""``manage.py sync_models FILE.toml``: register or update the models declared in a file."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from inference.declarations import DeclarationError, sync_models


class Command(BaseCommand):
    help = "Register or update the models declared in a TOML file. Other models stay unchanged."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)

    def handle(self, *, file: Path, **options: Any) -> None:
        try:
            synced = sync_models(path=file)
        except DeclarationError as error:
            raise CommandError(f"Nothing was changed.\n{error}") from error
        for model in synced:
            self.stdout.write(f"{model.outcome:9} {model.name}")
