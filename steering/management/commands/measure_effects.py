"""``manage.py measure_effects NAME``: queue a job that measures effects of features or vectors, and wait for it."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from jobs.commands import require_success, wait_for_end
from jobs.models import Job
from steering.effects.job import request_effects, request_vector_effects
from steering.effects.recipe import EffectRecipe
from steering.models import SAE, VectorSet

DEFAULTS = EffectRecipe()


class Command(MillmCommand):
    help = (
        "Measure the effect of every live feature of an SAE, of some features, or of the vectors of a set, on the "
        "model's output: the strength that moves it by a fixed KL, the fluency and samples; of features also whether "
        "the answers activate them, and the output score. The running server does this in a job."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="name of the SAE, or with --vectors of the vector set")
        parser.add_argument("--vectors", action="store_true", help="measure the vectors of a set")
        parser.add_argument("--target", type=float, default=DEFAULTS.target, help="KL in nats per token")
        parser.add_argument("--push-cap", type=float, default=DEFAULTS.push_cap, help="cap on the relative size")
        parser.add_argument(
            "--prompt", action="append", dest="prompts", help="repeatable; replaces the default prompts"
        )
        parser.add_argument(
            "--features", nargs="+", type=int, default=(), metavar="INDEX", help="measure only these features"
        )
        parser.add_argument("--replace", action="store_true", help="measure again what has an effect")
        parser.add_argument("--no-wait", action="store_true", help="only enqueue the job")

    def handle(self, **options: Any) -> None:
        prompts = DEFAULTS.prompts if options["prompts"] is None else tuple(options["prompts"])
        recipe = EffectRecipe(target=options["target"], push_cap=options["push_cap"], prompts=prompts)
        if options["vectors"]:
            job = _vectors_job(options["name"], recipe, options)
        else:
            job = _features_job(options["name"], recipe, options)
        self.stdout.write(f'Queued job {job.pk} ("{job}").')
        if options["no_wait"]:
            return
        job = wait_for_end(job, self.stdout.write)
        require_success(job)
        result = job.result or {}
        what = "vectors" if options["vectors"] else "features"
        self.stdout.write(self.style.SUCCESS(f"Measured {result['measured']} {what} of {options['name']}."))


def _features_job(name: str, recipe: EffectRecipe, options: Mapping[str, Any]) -> Job:
    sae = SAE.objects.filter(name=name).select_related("model").first()
    if sae is None:
        raise CommandError(f"The SAE {name} does not exist; register it with add_sae first.")
    return request_effects(sae=sae, recipe=recipe, features=options["features"], replaces=options["replace"])


def _vectors_job(name: str, recipe: EffectRecipe, options: Mapping[str, Any]) -> Job:
    if options["features"]:
        raise CommandError("--features is for the features of an SAE; a set's vectors are measured together.")
    vector_set = VectorSet.objects.filter(name=name).select_related("model").first()
    if vector_set is None:
        raise CommandError(f"The vector set {name} does not exist; add it with add_vectors first.")
    return request_vector_effects(vector_set=vector_set, recipe=recipe, replaces=options["replace"])
