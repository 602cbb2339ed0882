"""The jobs that measure the effects of an SAE's features, and of the vectors of a set."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import User
from django.db.models import Q
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from inference.client import get_client
from inference.files.sources import SourceError, resolve_source
from inference.registry.registry import get_registry
from inference.torch_threads import borrowed_workers
from jobs.models import Job
from jobs.services import enqueue_job
from steering.effects.probe import AT_ONCE, EffectProbe, MeasuredDirection
from steering.effects.recipe import NUM_LENS_TOKENS, EffectRecipe
from steering.effects.store import recipe_text, store_effects, store_output_tokens, store_vector_effect
from steering.errors import EvaluationError, SAENotMeasuredError
from steering.features.search import FeatureQuerySet
from steering.models import SAE, Feature, PlainVector, VectorSet
from steering.profiles.compilation import get_compiler
from steering.profiles.drafts import feature_target, sae_identity, vector_target
from steering.profiles.snapshot import registered_saes, source_of
from steering.residuals import EnginePromptReader, ordinary_tokens

if TYPE_CHECKING:
    from inference.registry.model_card import ModelCard
    from jobs.running_job import RunningJob

Lens = Callable[[Sequence[int]], list[tuple[int, ...]]]
"""Returns the first tokens in the logit lens of each feature; empty if there is no lens."""


def request_effects(
    *,
    sae: SAE,
    recipe: EffectRecipe | None = None,
    features: Collection[int] = (),
    replaces: bool = False,
    owner: User | None = None,
) -> Job:
    """Queue the measurement of ``features``, by default of all live features. With ``replaces``, features that have an
    effect of the same recipe are measured again.

    Raise SAENotMeasuredError if the mean residual norm at the SAE's site is unknown, and EvaluationError if the SAE
    does not have one of the features, or if it is dead.
    """
    if not sae.reference_norm:
        raise SAENotMeasuredError(
            f"The mean residual norm of `{sae.name}` is unknown, so strengths cannot be capped. Measure the SAE first."
        )
    live = live_features(sae).filter(index__in=features).values_list("index", flat=True)
    if unusable := set(features) - set(live):
        raise EvaluationError(f"Feature {min(unusable)} of `{sae.name}` does not exist or is dead.", param="features")
    params: dict[str, Any] = {"sae": sae.pk, "recipe": (recipe or EffectRecipe()).to_json(), "replaces": replaces}
    params["features"] = sorted(live)
    return enqueue_job(kind="steering.effects", params=params, owner=owner, title=f"Measure effects of {sae}")


def live_features(sae: SAE) -> FeatureQuerySet:
    """Return the features that can have an effect: not known to be dead, and with a decoder row that is not zero."""
    rows = sae.features.exclude(density=0).exclude(decoder_norm=0).exclude(decoder_norm=None)
    found: FeatureQuerySet = rows.order_by("index")
    return found


def run_effects(job: RunningJob) -> dict[str, Any]:
    """Measure the job's features, a batch at a time. Results are stored as they come, so a run resumes."""
    sae = SAE.objects.select_related("model").get(pk=job.params["sae"])
    recipe = EffectRecipe.from_json(job.params["recipe"])
    done = _done(job, recipe)
    live = live_features(sae)
    if selected := job.params.get("features"):  # jobs of earlier versions have none
        live = live.filter(index__in=selected)
    total, num_todo = live.count(), live.exclude(done).count()
    num_done = num_before = total - num_todo
    try:
        with asyncio.Runner() as runner:
            job.progress(num_done, total, "Generating unsteered texts")
            probe = runner.run(_probe(sae, recipe))
            _measure_output_tokens(job, sae, live.filter(output_tokens=[]), probe, runner)
            todo = _order(live.exclude(done))
            lens = open_lens(sae, probe.model.vocab_size, job.log)
            for first in range(0, len(todo), AT_ONCE):
                job.progress(num_done, total, "Measuring features")
                job.end_turn()
                rows = _rows(sae, todo[first : first + AT_ONCE])
                tokens = lens([row.index for row in rows])
                features = [MeasuredDirection(feature_target(row), ids) for row, ids in zip(rows, tokens, strict=True)]
                runner.run(get_registry().ready(sae.model.name))  # the model may have been unloaded since
                results = runner.run(probe.measure(features))
                store_effects(sae=sae, results=results, recipe=recipe_text(recipe), measured_at=timezone.now())
                num_done += len(rows)
    finally:
        registered_saes.invalidate()  # edits of requests with the strength "auto" are cached there
    job.progress(num_done, total, "Measuring features")
    measured = num_done - num_before
    return {"sae": sae.pk, "measured": measured, "skipped": (len(selected) if selected else sae.d_sae) - measured}


def _measure_output_tokens(
    job: RunningJob, sae: SAE, live: FeatureQuerySet, probe: EffectProbe, runner: asyncio.Runner
) -> None:
    """Measure the output tokens of features, which takes less than half as long as their effects."""
    todo = list(live.values_list("index", flat=True))
    for first in range(0, len(todo), AT_ONCE):
        job.progress(first, len(todo), "Measuring output tokens")
        job.end_turn()
        rows = _rows(sae, todo[first : first + AT_ONCE])
        runner.run(get_registry().ready(sae.model.name))  # the model may have been unloaded since
        found = runner.run(probe.output_tokens([feature_target(row) for row in rows]))
        store_output_tokens(sae=sae, found={row.index: tokens for row, tokens in zip(rows, found, strict=True)})


def _order(live: FeatureQuerySet) -> list[int]:
    """Return the indices of features, those first that change the output most."""
    sizes = {index: sum(part for _, part in tokens) for index, tokens in live.values_list("index", "output_tokens")}
    return sorted(sizes, key=lambda index: (-sizes[index], index))


def _rows(sae: SAE, indices: Sequence[int]) -> list[Feature]:
    rows = list(sae.features.filter(index__in=indices).order_by("index"))
    for row in rows:
        row.sae = sae
    return rows


def _done(job: RunningJob, recipe: EffectRecipe) -> Q:
    """Return the condition of what the job need not measure: an effect of the recipe, with ``replaces`` one of its own.

    Also notes when the job began.
    """
    started = _started(job)
    done = Q(effect__recipe=recipe_text(recipe))
    return done & Q(effect__measured_at__gte=started) if job.params["replaces"] else done


def _started(job: RunningJob) -> Any:
    if "started" not in job.checkpoint:
        job.save_checkpoint({"started": timezone.now().isoformat()})
    return parse_datetime(job.checkpoint["started"])


async def _probe(sae: SAE, recipe: EffectRecipe) -> EffectProbe:
    model, site = await get_registry().ready(sae.model.name), sae_identity(sae).site
    return await EffectProbe.prepare(get_client(), model, recipe, source_of(sae), site)


def open_lens(sae: SAE, vocab_size: int, log: Callable[[str], None]) -> Lens:
    """Return a reader of the logit lens for many features. ``log`` gets the reason if there is no lens."""
    from steering.features.unembedding import UnembeddingError, open_unembedding  # imports torch

    def no_lens(indices: Sequence[int]) -> list[tuple[int, ...]]:
        return [() for _ in indices]

    if sae.site in SAE.OUTSIDE_RESIDUAL:
        log("There are no output scores: the SAE does not write to the residual.")
        return no_lens
    try:
        folder = resolve_source(sae.model.model_source)
        unembedding = open_unembedding(folder, trust_remote_code=sae.model.trust_remote_code)
    except (SourceError, UnembeddingError, OSError, ValueError, KeyError) as error:
        log(f"There are no output scores: {error}")
        return no_lens
    weights = get_compiler().sae(source_of(sae))

    def lens(indices: Sequence[int]) -> list[tuple[int, ...]]:
        import torch

        with torch.inference_mode(), borrowed_workers():
            rows = torch.stack([weights.decoder_row(index).float() for index in indices]).numpy()
            return [tuple(ids) for ids in unembedding.top_tokens(rows, NUM_LENS_TOKENS, vocab_size).tolist()]

    return lens


def request_vector_effects(
    *, vector_set: VectorSet, recipe: EffectRecipe | None = None, replaces: bool = False, owner: User | None = None
) -> Job:
    """Queue the measurement of the vectors of a set. With ``replaces``, those that have an effect of the same recipe
    are measured again."""
    params = {"vector_set": vector_set.pk, "recipe": (recipe or EffectRecipe()).to_json(), "replaces": replaces}
    title = f"Measure effects of the vectors {vector_set}"
    return enqueue_job(kind="steering.vector_effects", params=params, owner=owner, title=title)


def run_vector_effects(job: RunningJob) -> dict[str, Any]:
    """Measure the vectors of the job's set, a batch at a time. Where the mean residual norm of a site is unknown, it is
    measured first, because strengths are capped relative to it."""
    vector_set = VectorSet.objects.select_related("model").get(pk=job.params["vector_set"])
    recipe = EffectRecipe.from_json(job.params["recipe"])
    rows = vector_set.vectors.filter(norm__gt=0).select_related("vector_set").order_by("pk")
    total, todo = rows.count(), list(rows.exclude(_done(job, recipe)))
    num_done = total - len(todo)
    if todo:
        try:
            with asyncio.Runner() as runner:
                job.progress(num_done, total, "Generating unsteered texts")
                model = runner.run(get_registry().ready(vector_set.model.name))
                _measure_norms(model, todo, recipe)
                probe = runner.run(EffectProbe.prepare(get_client(), model, recipe))
                for first in range(0, len(todo), AT_ONCE):
                    job.progress(num_done + first, total, "Measuring vectors")
                    job.end_turn()
                    runner.run(get_registry().ready(vector_set.model.name))  # it may have been unloaded since
                    _measure_vectors(todo[first : first + AT_ONCE], probe, runner)
        finally:
            registered_saes.invalidate()  # edits of requests with the strength "auto" are cached there
    job.progress(total, total, "Measuring vectors")
    return {"vector_set": vector_set.pk, "measured": len(todo), "skipped": vector_set.vectors.count() - len(todo)}


def _measure_vectors(rows: Sequence[PlainVector], probe: EffectProbe, runner: asyncio.Runner) -> None:
    """Measure vectors, and store their effects."""
    targets = [vector_target(row) for row in rows]
    tokens = runner.run(probe.output_tokens(targets))
    results = runner.run(probe.measure([MeasuredDirection(target) for target in targets]))
    recipe, now = recipe_text(probe.recipe), timezone.now()
    for row, result, written in zip(rows, results, tokens, strict=True):
        store_vector_effect(vector=row, result=result, output_tokens=written, recipe=recipe, measured_at=now)


def _measure_norms(model: ModelCard, rows: Sequence[PlainVector], recipe: EffectRecipe) -> None:
    """Set the mean residual norm of vectors whose site has none, from the recipe's prompts."""
    unknown = [row for row in rows if not vector_target(row).scales.reference_norm]
    if not unknown:
        return
    places = [row.place for row in unknown]
    chat = model.text.has_chat_template
    found = EnginePromptReader().read(model.record.name, recipe.prompts, places, chat=chat)
    for number, row in enumerate(unknown):
        norms = [norm for one in found if len(one.sites[number]) for norm in ordinary_tokens(one.sites[number])[1]]
        if not norms:
            raise EvaluationError("The prompts have no tokens to measure the residual on; choose longer prompts.")
        row.reference_norm = math.fsum(norms) / len(norms)
        row.save(update_fields=["reference_norm"])


def effect_counts(sae: SAE) -> tuple[int, int]:
    """Return the number of features with a measured effect, and of live features."""
    return Feature.objects.filter(sae=sae, effect__isnull=False).count(), live_features(sae).count()
