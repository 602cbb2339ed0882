"""``manage.py export_profiles FOLDER --model M``: write the latest version of every profile, one file each."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from inference.models import LanguageModel
from steering.exchange.exports import file_name, version_document
from steering.models import ProfileVersion


class Command(BaseCommand):
    help = "Write the latest version of each profile of a model as JSON, for import_profile."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", type=Path, help="a new or empty folder")
        parser.add_argument("--model", required=True, help="their model")
        parser.add_argument("--archived", action="store_true", help="include archived profiles")

    def handle(self, *, folder: Path, model: str, archived: bool, **options: Any) -> None:
        if not LanguageModel.objects.filter(name=model).exists():
            raise CommandError(f"The model {model} does not exist.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise CommandError(f"{folder} is not empty.")
            versions = newest_versions(model, archived=archived)
            for version in versions:
                _write(folder / file_name(version.profile, version.number), version)
        except OSError as error:
            raise CommandError(f"{folder} could not be written: {error.strerror}.") from error
        self.stdout.write(self.style.SUCCESS(f"Wrote {len(versions)} profiles to {folder}."))


def newest_versions(model: str, *, archived: bool) -> list[ProfileVersion]:
    """Return the latest version of each published profile."""
    versions = ProfileVersion.objects.filter(profile__model__name=model).select_related("profile__model")
    if not archived:
        versions = versions.filter(profile__archived_at=None)
    return list(versions.order_by("profile__name", "-number").distinct("profile__name"))


def _write(path: Path, version: ProfileVersion) -> None:
    text = json.dumps(version_document(version), ensure_ascii=False, indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
