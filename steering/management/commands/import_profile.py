"""``manage.py import_profile FILE --model M``: import drafts from a file, in our own format or another tool's."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from inference.models import LanguageModel
from steering.exchange.documents import MAX_BYTES
from steering.exchange.imports import ImportOptions, import_profiles, plan_import
from steering.exchange.plan import ImportPlan
from steering.models import SAE
from steering.spec.wording import describe_edit


class Command(MillmCommand):
    help = (
        "Import steering profiles as drafts from miLLM's JSON, miLLM 1, miStudio's clusters, "
        "Neuronpedia's steering, Goodfire's variants, or the steering CSV of lm-evaluation-harness. If "
        "anything in the file is invalid, nothing is imported."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--model", required=True, help="the registered model they steer")
        parser.add_argument("--sae", default="", help="the SAE that the file refers to, if the file does not name it")
        parser.add_argument("--name", default="", help="overrides the name in the file")
        parser.add_argument(
            "--replace", action="store_true", help="replace drafts of existing profiles with these names"
        )
        parser.add_argument("--dry-run", action="store_true", help="only show what would be imported")

    def handle(self, **options: Any) -> None:
        import_options = _import_options(options)
        path: Path = options["file"]
        try:
            plan = plan_import(_bytes(path), path.name, import_options)
            self._show(plan)
            if options["dry_run"]:
                return
            made = import_profiles(plan=plan, options=import_options)
        except OSError as error:
            raise CommandError(str(error)) from error
        names = ", ".join(map(str, made))
        self.stdout.write(self.style.SUCCESS(f"Imported {names}; publish them to use them."))

    def _show(self, plan: ImportPlan) -> None:
        for profile in plan.profiles:
            self.stdout.write(f"{profile.name} ({plan.format})")
            for spec in profile.specs:
                self.stdout.write(f"  {describe_edit(spec)}")
        for doubt in plan.doubts:
            self.stdout.write(self.style.WARNING(doubt))


def _import_options(options: dict[str, Any]) -> ImportOptions:
    model = LanguageModel.objects.filter(name=options["model"]).first()
    if model is None:
        raise CommandError(f"The model {options['model']} does not exist; register it with add_model first.")
    sae = SAE.objects.filter(name=options["sae"], model=model).first() if options["sae"] else None
    if options["sae"] and sae is None:
        raise CommandError(f"The model {model} has no SAE {options['sae']}; register it with add_sae first.")
    return ImportOptions(model, sae, options["name"], options["replace"])


def _bytes(path: Path) -> bytes:
    """Read a regular file up to the size limit of imports."""
    if not path.is_file():
        raise CommandError(f"{path} is not a file.")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
