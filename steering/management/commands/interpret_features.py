"""``manage.py interpret_features SAE --model M``: queue a job that labels features, and wait for it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from jobs.commands import require_success, wait_for_end
from steering.interpretation.job import request_interpretation
from steering.models import SAE


class Command(MillmCommand):
    help = (
        "Label the features of an SAE that have examples and no label: a model explains each from its examples, "
        "and the label is scored by detection. The running server does this in a job."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("sae", help="name of the SAE")
        parser.add_argument("--model", required=True, help="a model of this server, or `endpoint` (see settings)")
        parser.add_argument("--limit", type=int, help="label at most this many features")
        parser.add_argument("--replace", action="store_true", help="replace labels of earlier runs too")
        parser.add_argument("--no-wait", action="store_true", help="only enqueue the job")

    def handle(self, **options: Any) -> None:
        sae = SAE.objects.filter(name=options["sae"]).first()
        if sae is None:
            raise CommandError(f"The SAE {options['sae']} does not exist; register it with add_sae first.")
        job = request_interpretation(
            sae=sae, model=options["model"], replaces=options["replace"], limit=options["limit"]
        )
        self.stdout.write(f'Queued job {job.pk} ("{job}").')
        if options["no_wait"]:
            return
        job = wait_for_end(job, self.stdout.write)
        require_success(job)
        found = job.result or {}
        self.stdout.write(
            self.style.SUCCESS(
                f"Labelled {found['labelled']} features; {found['nonsense']} answers were no labels, "
                f"{found['failed']} requests failed."
            )
        )
