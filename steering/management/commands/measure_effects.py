"""``manage.py measure_effects SAE``: queue a job that measures the effects of features, and wait for it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from jobs.commands import require_success, wait_for_end
from steering.effects.job import request_effects
from steering.effects.recipe import EffectRecipe
from steering.models import SAE

DEFAULTS = EffectRecipe()


class Command(MillmCommand):
    help = (
        "Measure the effect of every live feature of an SAE, or of some features, on the model's output: the strength "
        "that moves it by a fixed KL, whether the answers then activate the feature, the output score, the fluency "
        "and samples. The running server does this in a job."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("sae", help="name of the SAE")
        parser.add_argument("--target", type=float, default=DEFAULTS.target, help="KL in nats per token")
        parser.add_argument("--push-cap", type=float, default=DEFAULTS.push_cap, help="cap on the relative size")
        parser.add_argument(
            "--prompt", action="append", dest="prompts", help="repeatable; replaces the default prompts"
        )
        parser.add_argument(
            "--features", nargs="+", type=int, default=(), metavar="INDEX", help="measure only these features"
        )
        parser.add_argument("--replace", action="store_true", help="measure features again that have an effect")
        parser.add_argument("--no-wait", action="store_true", help="only enqueue the job")

    def handle(self, **options: Any) -> None:
        sae = SAE.objects.filter(name=options["sae"]).select_related("model").first()
        if sae is None:
            raise CommandError(f"The SAE {options['sae']} does not exist; register it with add_sae first.")
        prompts = DEFAULTS.prompts if options["prompts"] is None else tuple(options["prompts"])
        recipe = EffectRecipe(target=options["target"], push_cap=options["push_cap"], prompts=prompts)
        job = request_effects(sae=sae, recipe=recipe, features=options["features"], replaces=options["replace"])
        self.stdout.write(f'Queued job {job.pk} ("{job}").')
        if options["no_wait"]:
            return
        job = wait_for_end(job, self.stdout.write)
        require_success(job)
        result = job.result or {}
        self.stdout.write(self.style.SUCCESS(f"Measured {result['measured']} features of {sae}."))
