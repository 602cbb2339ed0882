"""manage.py commands_doc: write docs/commands.md, or check it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management import BaseCommand, CommandError

from millm_site.commands_doc import PATH, commands_page, is_in_step


class Command(BaseCommand):
    help = "Write docs/commands.md from the commands."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="Write nothing; fail when the page is not in step.")

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        if not check:
            PATH.write_text(commands_page())
        elif not is_in_step():
            raise CommandError(f"{PATH.name} is not in step with the commands. Run: python manage.py commands_doc")
