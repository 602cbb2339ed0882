"""``manage.py export_profile NAME --model M``: a version, or the draft, as miLLM's own JSON."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from steering.exchange.exports import draft_document, version_document
from steering.management.profiles import find_profile, find_version


class Command(MillmCommand):
    help = "Write a published version of a profile (default: the latest) or its draft as JSON."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="the profile, or name@version")
        parser.add_argument("--model", required=True, help="its model")
        parser.add_argument("--draft", action="store_true", help="the draft instead of a version")
        parser.add_argument("--output", type=Path, help="a new file (default: standard output)")

    def handle(self, **options: Any) -> None:
        if options["draft"]:
            document = draft_document(find_profile(options["name"], options["model"]))
        else:
            document = version_document(find_version(options["name"], options["model"]))
        text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
        if options["output"] is None:
            self.stdout.write(text)
            return
        try:
            with options["output"].open("x", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            raise CommandError(f"{options['output']} could not be written: {error.strerror}.") from error
        self.stdout.write(self.style.SUCCESS(f"Wrote {options['output']}."))
