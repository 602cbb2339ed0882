"""``manage.py list_profiles``: list the profiles and their latest versions."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db.models import F, Max

from steering.models import SteeringProfile


class Command(BaseCommand):
    help = "List steering profiles."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--model", default="", help="only profiles of this model")
        parser.add_argument("--json", action="store_true", help="print a JSON list")

    def handle(self, *, model: str, **options: Any) -> None:
        profiles = SteeringProfile.objects.filter(model__name=model) if model else SteeringProfile.objects.all()
        found = profiles.annotate(newest=Max("versions__number"), of_model=F("model__name"), by=F("owner__username"))
        rows = [_row(profile) for profile in found.order_by("of_model", "name")]
        if options["json"]:
            self.stdout.write(json.dumps(rows, ensure_ascii=False))
            return
        for row in rows:
            state = "archived" if row["archived"] else f"@{row['newest']}" if row["newest"] else "a draft"
            self.stdout.write(f"{row['name']} ({row['model']}, {state}) {row['description']}".rstrip())


def _row(profile: Any) -> dict[str, Any]:
    return {
        "name": profile.name,
        "model": profile.of_model,
        "owner": profile.by,
        "newest": profile.newest,
        "archived": profile.archived_at is not None,
        "description": profile.description,
    }
