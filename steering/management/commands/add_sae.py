"""``manage.py add_sae NAME SOURCE --model M``: register an SAE, downloading it from the Hub if necessary."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from inference.files.sources import source_at_shell
from inference.interventions import SITE_KINDS
from inference.models import LanguageModel
from steering.features.label_files import read_labels
from steering.features.labels import FeatureLabel
from steering.sae_registry.health import judge
from steering.sae_registry.hub import list_saes
from steering.sae_registry.jobs import add_sae
from steering.sae_registry.registration import (
    SAELocation,
    describe,
    inspect_sae,
    listing_line,
    prepare_sae,
    read_health,
)


class Command(MillmCommand):
    help = (
        "Register an SAE from a local directory or the Hugging Face Hub. Hub SAEs are downloaded (gated ones need "
        "HF_TOKEN). Its configuration is checked against the model before the weights are downloaded."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="its name on this server")
        parser.add_argument("source", help="a directory, or a Hub id such as org/saes")
        parser.add_argument("--model", required=True, help="the registered model it belongs to")
        parser.add_argument("--subfolder", default="", help="folder or file of the SAE inside the source")
        parser.add_argument("--revision", default="", help="branch, tag or commit on the Hub")
        parser.add_argument("--layer", type=int, help="overrides the SAE's configuration")
        parser.add_argument("--site", choices=SITE_KINDS, help="overrides the SAE's configuration")
        parser.add_argument("--labels", type=Path, help="JSON, JSONL or CSV, as for import_labels")
        parser.add_argument("--health", type=Path, help="JSON object with l0, fvu and mean_resid_norm")
        parser.add_argument("--measure", action="store_true", help="queue a job that measures the SAE")
        parser.add_argument(
            "--preview", action="store_true", help="only show the SAE's configuration and whether it fits the model"
        )
        parser.add_argument("--list", action="store_true", help="only list the SAEs of the source")

    def handle(self, **options: Any) -> None:
        model = LanguageModel.objects.filter(name=options["model"]).first()
        if model is None:
            raise CommandError(f"The model {options['model']} does not exist; register it with add_model first.")
        options["source"] = source_at_shell(options["source"])
        try:
            if options["list"]:
                self._list(options["source"], options["revision"], options["subfolder"])
            else:
                self._add(model, options)
        except OSError as error:
            raise CommandError(str(error)) from error

    def _list(self, source: str, revision: str, subfolder: str) -> None:
        found = list_saes(source, revision=revision, subfolder=subfolder)
        for sae in found:
            self.stdout.write(listing_line(sae))
        self.stdout.write(self.style.SUCCESS(f"{len(found)} SAEs in {source}."))

    def _add(self, model: LanguageModel, options: dict[str, Any]) -> None:
        location = SAELocation(options["source"], options["revision"], options["subfolder"])
        candidate = inspect_sae(location, model, layer=options["layer"], site=options["site"])
        self.stdout.write(describe(candidate, model))
        for doubt in candidate.doubts:
            self.stdout.write(self.style.WARNING(doubt))
        if options["preview"]:
            return
        labels: tuple[FeatureLabel, ...] = ()
        if options["labels"]:
            labels = read_labels(options["labels"], candidate.config.math.d_sae)
        health = read_health(options["health"]) if options["health"] else None
        prepared = prepare_sae(options["name"], model, candidate, labels=labels, health=health)
        added = add_sae(prepared=prepared, measures=options["measure"])
        sae = added.sae
        for verdict in judge(sae):
            self.stdout.write(self.style.WARNING(verdict.text) if verdict.is_warning else verdict.text)
        self.stdout.write(self.style.SUCCESS(f"Registered {sae} with {sae.d_sae} features, {len(labels)} labelled."))
        if added.measurement is not None:
            self.stdout.write(f"The job {added.measurement.pk} measures it.")
