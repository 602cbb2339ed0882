"""``manage.py check_sae NAME``: measure a registered SAE on a corpus, in this process and without the engine."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from inference.registry.standalone_model import open_standalone
from steering.corpora.corpus import DEFAULT_TOKENS, MAX_TOKENS, read_corpus
from steering.models import SAE
from steering.sae_registry.health import judge
from steering.sae_registry.health_check import MeasureParams, check_sae


class Command(MillmCommand):
    help = (
        "Measure an SAE on a corpus: its fit, and each feature's max activation, density and top "
        "examples. Loads the model into this process; a running server can do the same in a job."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="the registered SAE")
        parser.add_argument("--corpus", default="", help=".jsonl, .ndjson or .txt (default: the included corpus)")
        parser.add_argument(
            "--tokens", type=int, default=DEFAULT_TOKENS, help=f"maximum number of tokens (default: {DEFAULT_TOKENS})"
        )
        parser.add_argument("--replace", action="store_true", help="replace imported statistics and examples")

    def handle(self, **options: Any) -> None:
        sae = SAE.objects.filter(name=options["name"]).select_related("model").first()
        if sae is None:
            raise CommandError(f"The SAE {options['name']} does not exist; register it with add_sae first.")
        if not 1 <= options["tokens"] <= MAX_TOKENS:
            raise CommandError(f"--tokens must be between 1 and {MAX_TOKENS}, got {options['tokens']}.")
        params = MeasureParams(read_corpus(options["corpus"]), options["tokens"], replaces_imports=options["replace"])
        with open_standalone(sae.model) as model:
            sae = check_sae(sae=sae, reader=model, params=params, progress=self._show)
        for verdict in judge(sae):
            self.stdout.write(self.style.WARNING(verdict.text) if verdict.is_warning else verdict.text)

    def _show(self, done: int, total: int) -> None:
        if done == total or done % 50 == 0:
            self.stdout.write(f"{done} of {total} texts")
