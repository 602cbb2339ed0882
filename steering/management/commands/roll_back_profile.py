"""``manage.py roll_back_profile NAME@VERSION``: publish an old version again."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from steering.management.profiles import find_version
from steering.profiles import lifecycle


class Command(MillmCommand):
    help = (
        "Publish an old version of a steering profile again, with a new number. The draft is replaced "
        "too, unless it has unpublished changes."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("version", help="name@version")
        parser.add_argument("--model", required=True, help="its model")
        parser.add_argument("--note", default="", help="why")

    def handle(self, **options: Any) -> None:
        if "@" not in options["version"]:
            raise CommandError(f"Give the version of {options['version']} to roll back to, as name@version.")
        version = find_version(options["version"], options["model"])
        again = lifecycle.roll_back(version=version, note=options["note"])
        self.stdout.write(self.style.SUCCESS(f"Published {again}, which restores {version}."))
