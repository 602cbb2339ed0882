"""``manage.py publish_profile NAME``: publish the draft as the latest version."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from core.commands import MillmCommand
from steering import services
from steering.management.profiles import find_profile


class Command(MillmCommand):
    help = "Publish the draft of a steering profile. New requests that name the profile use it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="the profile")
        parser.add_argument("--model", required=True, help="its model")
        parser.add_argument("--note", default="", help="what changed and why")

    def handle(self, **options: Any) -> None:
        profile = find_profile(options["name"], options["model"])
        version = services.publish_profile(profile=profile, note=options["note"])
        self.stdout.write(self.style.SUCCESS(f"Published {version} ({version.fingerprint[:12]})."))
