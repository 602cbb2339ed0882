"""``manage.py export_logs``: the request log as CSV, JSONL or chats, to standard output or a file."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from openai_api.request_log.export import FORMATS, Export, start_export
from openai_api.request_log.search_form import SearchForm


class Command(BaseCommand):
    help = "Export the request log, newest first. The options are those of the log's search page."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--format", choices=FORMATS, default="jsonl", help="chats: messages with their answers, one chat a line"
        )
        parser.add_argument("--output", type=Path, help="a new file (default: standard output)")
        parser.add_argument("--with-text", action="store_true", help="prompts, completions, parameters, error messages")
        for name in SearchForm(None, sees_text=True).fields:
            parser.add_argument(f"--{name}", default="", metavar="VALUE")

    def handle(self, **options: Any) -> None:
        form = SearchForm(_conditions(options), sees_text=True)
        if not form.is_valid():
            raise CommandError("; ".join(f"{name}: {' '.join(map(str, texts))}" for name, texts in form.errors.items()))
        output: Path | None = options["output"]
        if output is not None and output.exists():
            raise CommandError(f"{output} already exists.")
        export = start_export(
            search=form.search(),
            conditions=form.conditions,
            form=options["format"],
            with_text=options["with_text"] or options["format"] == "chats",
            user=None,
        )
        self._write(export, output)

    def _write(self, export: Export, output: Path | None) -> None:
        if output is None:
            for batch in export.batches():
                sys.stdout.buffer.write(batch)
            return
        beside = output.with_name(f"{output.name}.part")
        with beside.open("xb") as file:
            for batch in export.batches():
                file.write(batch)
        beside.rename(output)


def _conditions(options: dict[str, Any]) -> dict[str, str]:
    names = SearchForm(None, sees_text=True).fields
    return {name: options[name] for name in names if options[name]}
