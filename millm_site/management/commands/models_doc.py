"""manage.py models_doc: write docs/models.md, or check it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management import BaseCommand, CommandError

from millm_site.models_doc import PATH, is_in_step, models_page


class Command(BaseCommand):
    help = "Write docs/models.md from inference/files/architectures.py."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="Write nothing; fail when the page is not in step.")

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        if not check:
            PATH.write_text(models_page())
        elif not is_in_step():
            raise CommandError(
                f"{PATH.name} is not in step with inference/files/architectures.py. Run: python manage.py models_doc"
            )
