"""POST /v1/features/contrast: features that separate two sets of texts, ranked by their effect on the model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from django.http.response import HttpResponseBase
from numpy.typing import NDArray

from inference.captures import AllFeatures, CaptureSpec
from inference.client import (
    CaptureEvent,
    Event,
    FinishedEvent,
    GenerationRequest,
    PromptLogprobsEvent,
    SamplingParams,
    Usage,
)
from inference.registry.model_card import ModelCard
from inference.runs import batch_size
from inference.steering_refs import SteeringRef
from openai_api.backend import get_backend
from openai_api.endpoints.completions import encode_prompts
from openai_api.generation.activations import find_loaded_sae
from openai_api.generation.run import collect_events
from openai_api.generation.sampling import completion_budget
from openai_api.generation.stats import usage_body
from openai_api.generation.target import resolve_unsteered
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.schemas.features import ContrastedFeatureBody, FeatureContrastBody, FeatureContrastRequest
from steering.features.contrast import SeparatingFeature, separating_features
from steering.profiles.resolver import SteeringSelection
from steering.sae_registry.loaded_sae import LoadedSAE

MAX_RUN_TOKENS = 400_000
PARAMS = SamplingParams(max_tokens=0, prompt_logprobs=0)


@dataclass(frozen=True, slots=True)
class TextScores:
    """One text computed once; ``values`` are its mean activations if they were requested."""

    logprobs: tuple[float, ...]
    values: NDArray[np.float32] | None

    @property
    def mean_logprob(self) -> float:
        """Return the mean log-probability in nats per token, from the second token on; 0 for a single token."""
        return sum(self.logprobs) / len(self.logprobs) if self.logprobs else 0.0


@dataclass(frozen=True, slots=True)
class Texts:
    positive: list[list[int]]
    negative: list[list[int]]

    @property
    def all(self) -> list[list[int]]:
        return [*self.positive, *self.negative]

    def of_side(self, feature: SeparatingFeature) -> range:
        """Return the indices in :attr:`all` of the side on which the feature is stronger."""
        if feature.difference > 0:
            return range(len(self.positive))
        return range(len(self.positive), len(self.all))


async def contrast_features(call: Call) -> HttpResponseBase:
    request = call.read(FeatureContrastRequest)
    model = await resolve_unsteered(call, request.model, "generation")
    sae = await find_loaded_sae(model, request.sae, param="sae")
    texts = Texts(
        await encode_prompts(model, request.positive, param="positive"),
        await encode_prompts(model, request.negative, param="negative"),
    )
    check_lengths(texts, model, request)
    base = await compiled(model, SteeringSelection())
    skipped = frozenset() if request.special_tokens else model.text.special_token_ids
    read = CaptureSpec(site=sae.read_site, probe=AllFeatures(sae.ref), pooling="mean", skip_token_ids=skipped)
    runs = await run(call, model, [(ids, base) for ids in texts.all], captures=(read,))
    found = await asyncio.to_thread(separate, runs, texts, sae, request.num_candidates)
    effects = await measure_effects(call, model, sae, texts, runs, found) if request.rerank is not False else {}
    best = sorted(found, key=lambda one: -effects.get(one.index, 0.0))[: request.num_features]
    labels = await get_backend().features().labels(sae.pk, [one.index for one in best])
    body: FeatureContrastBody = {
        "object": "list",
        "model": model.record.name,
        "sae": sae.name,
        "layer": sae.site.layer,
        "site": sae.site.kind,
        "data": [feature_body(one, labels.get(one.index), effects.get(one.index)) for one in best],
        "usage": usage_body(call.outcome.usage),
    }
    return json_response(body)


def check_lengths(texts: Texts, model: ModelCard, request: FeatureContrastRequest) -> None:
    for name, side in (("positive", texts.positive), ("negative", texts.negative)):
        for ids in side:
            completion_budget(0, len(ids), model, param=name)
    longest = max(sum(map(len, side)) for side in (texts.positive, texts.negative))
    effects = 0 if request.rerank is False else request.num_candidates * longest
    total = sum(map(len, texts.all)) + effects
    if total > MAX_RUN_TOKENS:
        message = (
            f"The request would compute up to {total} tokens; the limit is {MAX_RUN_TOKENS}. "
            "Send less text or fewer candidates."
        )
        raise invalid(message, param="candidates" if effects else "positive", code="reading_too_large")


async def compiled(model: ModelCard, selection: SteeringSelection) -> SteeringRef | None:
    """Compile the selection and the server's policies."""
    profile = await get_backend().steer(model.record.name, selection, special_token_ids=model.text.special_token_ids)
    return profile.steering if profile else None


def separate(runs: Sequence[TextScores], texts: Texts, sae: LoadedSAE, count: int) -> tuple[SeparatingFeature, ...]:
    values = []
    for place, one in enumerate(runs):
        if one.values is None:
            name, place = (
                ("positive", place) if place < len(texts.positive) else ("negative", place - len(texts.positive))
            )
            raise invalid(
                f"`{name}[{place}]` must contain more than special tokens.",
                param=f"{name}[{place}]",
                code="invalid_prompt",
            )
        values.append(one.values)
    middle = len(texts.positive)
    return separating_features(np.stack(values[:middle]), np.stack(values[middle:]), sae.decoder_norms(), count)


async def measure_effects(
    call: Call,
    model: ModelCard,
    sae: LoadedSAE,
    texts: Texts,
    base: Sequence[TextScores],
    found: Sequence[SeparatingFeature],
) -> Mapping[int, float]:
    """Return by feature the loss of log-probability on its side when it is silenced, in nats per token."""
    jobs: list[tuple[list[int], SteeringRef | None]] = []
    for feature in found:
        edit = {"sae": sae.name, "index": feature.index, "operation": "ablate"}
        silenced = await compiled(model, SteeringSelection(inline={"features": [edit]}))
        jobs.extend((texts.all[place], silenced) for place in texts.of_side(feature))
    runs = iter(await run(call, model, jobs) if jobs else ())
    effects = {}
    for feature in found:
        losses = [base[place].mean_logprob - next(runs).mean_logprob for place in texts.of_side(feature)]
        effects[feature.index] = sum(losses) / len(losses)
    return effects


async def run(
    call: Call,
    model: ModelCard,
    jobs: Sequence[tuple[list[int], SteeringRef | None]],
    captures: tuple[CaptureSpec, ...] = (),
) -> list[TextScores]:
    """Run each text once, in one batch whatever steers it. Raises MillmError; the engine stops however this ends."""
    await call.reserve_tokens(sum(len(ids) for ids, _ in jobs))
    priority = call.key.priority if call.key else 0
    requests = [
        GenerationRequest(
            f"{call.id}/{number}",
            model.record.name,
            tuple(ids),
            PARAMS,
            steering,
            number,
            priority,
            captures,
            cache_salt=call.cache_salt(model.record),
        )
        for number, (ids, steering) in enumerate(jobs)
    ]

    def note(event: Event) -> None:
        if isinstance(event, FinishedEvent):
            call.add_usage(Usage(event.usage.prompt_tokens, event.usage.cached_tokens))

    collected = await collect_events(call, requests, group_size=batch_size(get_backend().client()), observe=note)
    return [scores_of(events) for events in collected]


def scores_of(events: Sequence[Event]) -> TextScores:
    logprobs: tuple[float, ...] = ()
    values: NDArray[np.float32] | None = None
    for event in events:
        if isinstance(event, PromptLogprobsEvent):
            logprobs = tuple(token.logprob for token in event.logprobs if token is not None)
        elif isinstance(event, CaptureEvent):
            values = event.captures[0].values[0]
    return TextScores(logprobs, values)


def feature_body(feature: SeparatingFeature, label: str | None, effect: float | None) -> ContrastedFeatureBody:
    return {
        "index": feature.index,
        "label": label,
        "positive": feature.positive,
        "negative": feature.negative,
        "difference": feature.difference,
        "separation": feature.separation,
        "effect": effect,
    }
