"""``manage.py archive_profile NAME``: archive or unarchive a profile."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from core.commands import MillmCommand
from steering.management.profiles import find_profile
from steering.profiles import lifecycle


class Command(MillmCommand):
    help = "Archive a steering profile. Requests that name it are rejected; its versions are kept."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="the profile")
        parser.add_argument("--model", required=True, help="its model")
        parser.add_argument("--undo", action="store_true", help="unarchive it")

    def handle(self, **options: Any) -> None:
        profile = find_profile(options["name"], options["model"])
        act = lifecycle.unarchive_profile if options["undo"] else lifecycle.archive_profile
        act(profile=profile)
        self.stdout.write(self.style.SUCCESS(f"{profile} is {'in use again' if options['undo'] else 'archived'}."))
