"""manage.py settings_doc: write docs/settings.md, or check it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management import BaseCommand, CommandError

from millm_site.settings_doc import PATH, is_in_step, settings_page


class Command(BaseCommand):
    help = "Write docs/settings.md from millm_site/env.py."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="Write nothing; fail when the page is not in step.")

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        if not check:
            PATH.parent.mkdir(exist_ok=True)
            PATH.write_text(settings_page())
        elif not is_in_step():
            raise CommandError(f"{PATH.name} is not in step with millm_site/env.py. Run: python manage.py settings_doc")
