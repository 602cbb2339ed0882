"""``manage.py import_labels SAE FILE``: import labels, statistics and examples of an SAE's features."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from steering.features.label_files import read_label_file
from steering.features.label_import import import_labels
from steering.models import SAE


class Command(MillmCommand):
    help = (
        "Import labels of an SAE's features from JSON, JSONL or CSV (optionally gzipped), with miLLM's "
        "fields or as exported by Neuronpedia. If anything in the file is invalid, nothing is imported."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("sae", help="name of the SAE")
        parser.add_argument("file", type=Path, help="for example explanations/batch-0.jsonl.gz")

    def handle(self, **options: Any) -> None:
        sae = SAE.objects.filter(name=options["sae"]).first()
        if sae is None:
            raise CommandError(f"The SAE {options['sae']} does not exist; register it with add_sae first.")
        try:
            found = read_label_file(options["file"], sae.d_sae)
        except OSError as error:
            raise CommandError(str(error)) from error
        report = import_labels(sae=sae, found=found)
        for doubt in report.doubts:
            self.stdout.write(self.style.WARNING(doubt))
        self.stdout.write(self.style.SUCCESS(f"Imported {report}"))
