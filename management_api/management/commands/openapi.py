"""Write the OpenAPI document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import BaseCommand, CommandError, CommandParser

from management_api.openapi import document

YAML_ENDINGS = {".yaml", ".yml"}


class Command(BaseCommand):
    help = "Write the OpenAPI 3.1 document of /v1 and /api, as JSON or YAML."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--output", type=Path, help="File to write. Default: print the document.")
        parser.add_argument(
            "--format", choices=("json", "yaml"), help="Default: from the file extension of --output, otherwise JSON."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path | None = options["output"]
        text = _text(options["format"] or _format_of(path))
        if path is None:
            self.stdout.write(text, ending="")
            return
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"Could not write `{path}`: {error.strerror}.") from error
        self.stdout.write(f"Wrote `{path}`.")


def _format_of(path: Path | None) -> str:
    return "yaml" if path is not None and path.suffix.lower() in YAML_ENDINGS else "json"


def _text(form: str) -> str:
    if form == "json":
        return json.dumps(document(), indent=1) + "\n"
    return yaml.safe_dump(json.loads(json.dumps(document())), sort_keys=False, allow_unicode=True)  # without tags
