"""``manage.py extract_vectors NAME PAIRS --model M --layer N``: queue a job that computes vectors from pairs of
prompts."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from inference.interventions import SITE_KINDS, Site
from inference.models import LanguageModel
from steering.exchange.documents import MAX_BYTES
from steering.vectors.directions import METHODS
from steering.vectors.extraction import POSITIONS, ExtractionParams, read_pairs, request_extraction


class Command(MillmCommand):
    help = (
        "Extract steering vectors from pairs of prompts that differ in one aspect. The running server "
        "does this in a job."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="name of the vectors")
        parser.add_argument("pairs", type=Path, help='a JSON list of {"positive": TEXT, "negative": TEXT}')
        parser.add_argument("--model", required=True, help="the registered model")
        parser.add_argument("--layer", type=int, action="append", required=True, help="repeatable")
        parser.add_argument("--site", choices=SITE_KINDS, default="resid_post")
        parser.add_argument("--method", choices=METHODS, default="mean_difference")
        parser.add_argument("--position", choices=POSITIONS, default="last", help="which tokens to use")
        parser.add_argument("--raw", action="store_true", help="use prompts as they are, without the chat template")
        parser.add_argument("--description", default="")

    def handle(self, **options: Any) -> None:
        model = LanguageModel.objects.filter(name=options["model"]).first()
        if model is None:
            raise CommandError(f"The model {options['model']} does not exist; register it with add_model first.")
        path: Path = options["pairs"]
        if not path.is_file():
            raise CommandError(f"{path} is not a file.")
        try:
            with path.open("rb") as file:
                pairs = read_pairs(file.read(MAX_BYTES + 1), path.name)
            params = ExtractionParams(
                name=options["name"], model=model, pairs=pairs, method=options["method"],
                sites=tuple(Site(layer, options["site"]) for layer in options["layer"]),
                position=options["position"], chat=not options["raw"], description=options["description"],
            )  # fmt: skip
            job = request_extraction(params=params)
        except OSError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(self.style.SUCCESS(f"Queued job {job.pk}, which will create the vectors {params.name}."))
