"""manage.py compatibility_doc: write the table of parameters into docs/openai-compatibility.md, or check it."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError

from openai_api.openapi.parameter_table import PATH, page_with_table


class Command(BaseCommand):
    help = "Write the table of endpoints and parameters in docs/openai-compatibility.md from the schemas."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--page", type=Path, default=PATH, help="The page to write. Default: docs/openai-compatibility.md."
        )
        parser.add_argument("--check", action="store_true", help="Write nothing; fail if the table does not match.")

    def handle(self, *args: Any, page: Path, check: bool, **options: Any) -> None:
        text = page.read_text()
        try:
            expected = page_with_table(text)
        except ValueError as error:
            raise CommandError(str(error)) from None
        if not check:
            page.write_text(expected)
        elif text != expected:
            raise CommandError(f"{page.name} does not match the schemas. Run: python manage.py compatibility_doc")
