"""``manage.py feature_effects export|import SAE FILE``: measured effects as a file that travels with the SAE."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from steering.effects.store import export_effects, import_effects
from steering.models import SAE


class Command(MillmCommand):
    help = (
        "Export measured effects of an SAE's features to a file of JSON lines, gzipped if it ends with .gz, or "
        "import them for the same SAE. If anything in a file is invalid, nothing is imported."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("act", choices=("export", "import"))
        parser.add_argument("sae", help="name of the SAE")
        parser.add_argument("file", type=Path, help="for example effects.jsonl.gz")

    def handle(self, **options: Any) -> None:
        sae = SAE.objects.filter(name=options["sae"]).first()
        if sae is None:
            raise CommandError(f"The SAE {options['sae']} does not exist; register it with add_sae first.")
        is_export = options["act"] == "export"
        try:
            count = (export_effects if is_export else import_effects)(sae, options["file"])
        except OSError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(self.style.SUCCESS(f"{'Exported' if is_export else 'Imported'} {count} effects."))
