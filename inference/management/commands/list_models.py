"""``manage.py list_models``: list the registered models and their states."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from inference.models import LanguageModel

FIELDS = ("name", "kind", "state", "source", "is_default", "pinned", "default_profile", "memory_bytes", "error")


class Command(BaseCommand):
    help = "List the registered models."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--state", choices=LanguageModel.State.values, help="only models in this state")
        parser.add_argument("--json", action="store_true", help="print a JSON list")

    def handle(self, *, state: str | None, **options: Any) -> None:
        models = LanguageModel.objects.all() if state is None else LanguageModel.objects.filter(state=state)
        rows = list(models.values(*FIELDS))
        if options["json"]:
            self.stdout.write(json.dumps(rows, ensure_ascii=False))
            return
        for row in rows:
            marks = "".join(
                f", {mark}" for mark, is_so in (("default", row["is_default"]), ("pinned", row["pinned"])) if is_so
            )
            said = f": {row['error']}" if row["error"] else ""
            self.stdout.write(f"{row['name']} ({row['kind']}, {row['state']}{marks}) from {row['source']}{said}")
