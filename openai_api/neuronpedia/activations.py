"""Activations of features on texts: POST /api/activation/new, /api/activation/source, /api/search-all and
/api/search-topk-by-token.

All of them run the texts unsteered through the model once, like /v1/features/activations.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from django.http.response import HttpResponseBase
from numpy.typing import NDArray

from inference.captures import ActivationCapture, CaptureSpec, FeatureValues, TopFeatures
from inference.client import CaptureEvent, Event
from inference.text.model_text import ModelText
from openai_api.backend import get_backend
from openai_api.endpoints.feature_activations import plan_texts
from openai_api.generation.activations import capture_spec
from openai_api.generation.reply import collect
from openai_api.generation.run import Generation
from openai_api.generation.target import resolve_target
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid, renaming
from openai_api.neuronpedia.features import activation_body
from openai_api.neuronpedia.schemas import (
    ActivationRequest,
    FoundNeuronBody,
    NeuronBody,
    SearchAllBody,
    SearchAllListBody,
    SearchAllRequest,
    SourceActivationsBody,
    SourceActivationsListBody,
    SourceActivationsRequest,
    TextOrTexts,
    TokenTopFeaturesBody,
    TopKByTokenBody,
    TopKByTokenListBody,
    TopKByTokenRequest,
)
from openai_api.neuronpedia.sources import find_source, find_sources, neuron_body, renamed, source_id, sources_of_set
from openai_api.schemas.activations import TokenSelection
from openai_api.schemas.features import FeatureActivationsRequest
from steering.features.catalog import SAERecord
from steering.features.labels import FeatureExample
from steering.sae_registry.loaded_sae import LoadedSAE

MAX_ACTIVE = 2048
"""The strongest features of a token that are read; SAEs rarely have more active ones, except on a BOS token."""
MAX_READ = 2**21  # activations of one request
DEFAULT_FOUND = 50
DEFAULT_PER_TOKEN = 10
_ALL_TOKENS = TokenSelection(special_tokens=True)
Reads = Mapping[tuple[int, int], Sequence[ActivationCapture]]


@dataclass(frozen=True, slots=True)
class CapturedText:
    """The tokens of a text and the captures of each SAE."""

    ids: Sequence[int]
    tokens: list[str]
    specials: frozenset[int]  # places of special tokens
    captures: Sequence[Sequence[ActivationCapture]]

    @property
    def has_bos(self) -> bool:
        return 0 in self.specials


@dataclass(frozen=True, slots=True, eq=False)
class Active:
    """Activations above 0: parallel arrays of the token's place, the feature and the value, ordered by feature."""

    places: NDArray[np.int64]
    features: NDArray[np.int64]
    values: NDArray[np.float32]

    @classmethod
    def from_captures(cls, captures: Sequence[ActivationCapture], *, skips_first: bool) -> Active:
        """Join the captures of a text; ``skips_first``: without those of the first token."""
        places, features, values = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
        for capture in captures:
            assert capture.places is not None, "captures are not pooled"
            assert capture.features is not None, "they are of the strongest features"
            rows, columns = np.nonzero(capture.values > 0)
            places.append(np.asarray(capture.places, np.int64)[rows])
            features.append(capture.features[rows, columns])
            values.append(capture.values[rows, columns])
        found = cls(np.concatenate(places), np.concatenate(features), np.concatenate(values))
        order = np.lexsort((found.places, found.features))
        if skips_first:
            order = order[found.places[order] > 0]
        return cls(found.places[order], found.features[order], found.values[order])

    def by_feature(self) -> Iterator[tuple[int, slice]]:
        """Yield each active feature with its part of the arrays."""
        names, starts = np.unique(self.features, return_index=True)
        ends = np.append(starts, len(self.features))[1:]
        for name, start, end in zip(names.tolist(), starts.tolist(), ends.tolist(), strict=True):
            yield name, slice(start, end)

    def row(self, part: slice, num_tokens: int) -> NDArray[np.float32]:
        """Return the values of one feature at all tokens."""
        row = np.zeros(num_tokens, np.float32)
        row[self.places[part]] = self.values[part]
        return row


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A feature that a search found, with its value at each token."""

    score: float
    sae: SAERecord
    feature: int
    row: NDArray[np.float32]


async def activations_on_text(call: Call) -> HttpResponseBase:
    """Return the activations of one feature on a text, or a list of them on several. The BOS token is left out."""
    request = call.read(ActivationRequest)
    place = request.feature
    sae = await find_source(call, place.modelId, place.source_id, param="feature.source")
    if place.index >= sae.d_sae:
        message = f"Features of `{source_id(sae)}` must be 0 to {sae.d_sae - 1}, got {place.index}."
        raise invalid(message, param="feature.index", code="invalid_feature")
    texts = await _captured(call, [sae], request.customText, "customText", feature=place.index)
    bodies = [activation_body(sae, place.index, _example(text)) for text in texts]
    return json_response(bodies[0] if isinstance(request.customText, str) else bodies)


async def source_activations(call: Call) -> HttpResponseBase:
    """Return the activations of all features of an SAE. Those of the BOS token are left out."""
    request = call.read(SourceActivationsRequest)
    sae = await find_source(call, request.modelId, request.source)
    texts = await _captured(call, [sae], request.customText, "customText", count=MAX_ACTIVE)
    body: SourceActivationsListBody = {"results": await asyncio.to_thread(lambda: [*map(_source_body, texts)])}
    return json_response(body)


async def search_all(call: Call) -> HttpResponseBase:
    """Return the features with the largest activations on a text."""
    request = call.read(SearchAllRequest)
    if request.selectedLayers:
        saes = await find_sources(call, request.modelId, request.selectedLayers, param="selectedLayers")
    else:
        saes = await sources_of_set(call, request.modelId, request.sourceSet or "")
    texts = await _captured(call, saes, request.text, "text", count=MAX_ACTIVE)
    for text in texts:
        if request.sortIndexes and max(request.sortIndexes) >= len(text.ids):
            message = f"`sortIndexes` must be tokens of the text, 0 to {len(text.ids) - 1}."
            raise invalid(message, param="sortIndexes")
    found = await asyncio.to_thread(lambda: [_strongest(text, saes, request) for text in texts])
    bodies = [await _search_body(text, each, request) for text, each in zip(texts, found, strict=True)]
    whole: SearchAllListBody = {"results": bodies}
    return json_response(bodies[0] if isinstance(request.text, str) else whole)


async def search_top_by_token(call: Call) -> HttpResponseBase:
    """Return the strongest features of each token."""
    request = call.read(TopKByTokenRequest)
    sae = await find_source(call, request.modelId, request.source)
    count = request.numResults or DEFAULT_PER_TOKEN
    texts = await _captured(call, [sae], request.text, "text", count=count)
    named = {int(one) for text in texts for capture in text.captures[0] for one in np.unique(_features(capture))}
    neurons = await _neurons(sae, named)
    bodies = [_by_token_body(text, sae, request, neurons) for text in texts]
    whole: TopKByTokenListBody = {"results": bodies}
    return json_response(bodies[0] if isinstance(request.text, str) else whole)


async def _captured(
    call: Call,
    saes: Sequence[SAERecord],
    texts: TextOrTexts,
    param: str,
    *,
    feature: int | None = None,
    count: int = 0,
) -> list[CapturedText]:
    """Run the texts through the model, and capture one feature or the ``count`` strongest ones of each SAE."""
    with renaming(lambda text: param if text == "input" else renamed(text.replace("`input", f"`{param}"))):
        inputs = [texts] if isinstance(texts, str) else texts
        request = FeatureActivationsRequest.parse({"model": saes[0].model, "input": inputs, "profile": None})
        target = await resolve_target(call, request)
        plan = await plan_texts(request, target)
        loaded = [await get_backend().features().readable(sae.model, sae.name) for sae in saes]
        specs = tuple(_spec(one, feature, count) for one in loaded)
        _check_size(plan.prompts, specs, param)
        names = ", ".join(sae.name for sae in saes)
        plan = dataclasses.replace(plan, captures=[specs] * len(plan.prompts), sae=names)
        generation = await Generation.start(call, target, plan)
        reader = _CaptureReader()
        await collect(generation, reader, reader.ignore)
    return [_text(target.model.text, reader.found, number, ids, len(saes)) for number, ids in enumerate(plan.prompts)]


class _CaptureReader:
    """Collects the captures of a generation. It has no chunks."""

    def __init__(self) -> None:
        self.found: defaultdict[tuple[int, int], list[ActivationCapture]] = defaultdict(list)

    def start(self) -> Iterator[None]:
        return iter(())

    def on_event(self, event: Event) -> Iterator[None]:
        if isinstance(event, CaptureEvent):
            for capture in event.captures:
                self.found[event.index, capture.number].append(capture)
        return iter(())

    def finish(self) -> Iterator[None]:
        return iter(())

    def ignore(self, chunk: None) -> None:
        """Take no chunk: there are none."""


def _spec(sae: LoadedSAE, feature: int | None, count: int) -> CaptureSpec:
    strongest = TopFeatures(sae.ref, min(count, sae.encoder.d_sae))
    probe = strongest if feature is None else FeatureValues(sae.ref, (feature,))
    return capture_spec(_ALL_TOKENS, sae.read_site, frozenset(), probe=probe)


def _check_size(prompts: Sequence[Sequence[int]], specs: Sequence[CaptureSpec], param: str) -> None:
    widths = [spec.probe.count if isinstance(spec.probe, TopFeatures) else 1 for spec in specs]
    total = sum(widths) * sum(map(len, prompts))
    if total > MAX_READ:
        message = (
            f"The request would capture up to {total} activations; the limit is {MAX_READ}. Send a shorter text, or "
            "fewer texts or layers."
        )
        raise invalid(message, param=param, code="reading_too_large")


def _text(text: ModelText, found: Reads, number: int, ids: Sequence[int], num_saes: int) -> CapturedText:
    specials = frozenset(place for place, token in enumerate(ids) if token in text.special_token_ids)
    captures = [found.get((number, sae), ()) for sae in range(num_saes)]
    return CapturedText(ids, [text.token_text(token) for token in ids], specials, captures)


def _example(text: CapturedText) -> FeatureExample:
    """Return the values of the only feature that was captured, without the BOS token unless there is nothing else."""
    values = np.zeros(len(text.ids), np.float32)
    for capture in text.captures[0]:
        values[list(capture.places or ())] = capture.values[:, 0]
    start = 1 if text.has_bos and len(text.ids) > 1 else 0
    return FeatureExample(tuple(text.tokens[start:]), tuple(values[start:].tolist()))


def _source_body(text: CapturedText) -> SourceActivationsBody:
    active = Active.from_captures(text.captures[0], skips_first=text.has_bos)
    pairs = list(zip(active.places.tolist(), active.values.tolist(), strict=True))
    return {"tokens": text.tokens, "activeFeatures": {str(name): pairs[part] for name, part in active.by_feature()}}


def _strongest(text: CapturedText, saes: Sequence[SAERecord], request: SearchAllRequest) -> list[Found]:
    """Return the features of all SAEs with the largest maximum, or sum over the tokens to sort by."""
    found: list[Found] = []
    for sae, captures in zip(saes, text.captures, strict=True):
        active = Active.from_captures(captures, skips_first=request.ignores_bos and text.has_bos)
        counted = np.isin(active.places, request.sortIndexes) if request.sortIndexes else None
        for name, part in active.by_feature():
            values = active.values[part]
            score = float(values.max() if counted is None else values[counted[part]].sum())
            if score > 0:
                found.append(Found(score, sae, name, active.row(part, len(text.ids))))
    return sorted(found, key=lambda one: -one.score)[: request.numResults or DEFAULT_FOUND]


async def _search_body(text: CapturedText, found: Sequence[Found], request: SearchAllRequest) -> SearchAllBody:
    names: defaultdict[SAERecord, set[int]] = defaultdict(set)
    for one in found:
        names[one.sae].add(one.feature)
    neurons = {sae: await _neurons(sae, indices) for sae, indices in names.items()}
    result: list[FoundNeuronBody] = []
    for one in found:
        neuron = neurons[one.sae].get(one.feature)
        if not _is_too_dense(neuron, request.max_density):
            result.append(
                {
                    "modelId": one.sae.model,
                    "layer": source_id(one.sae),
                    "index": str(one.feature),
                    "values": one.row.tolist(),
                    "maxValue": float(one.row.max()),
                    "maxValueIndex": int(one.row.argmax()),
                    "neuron": neuron,
                }
            )
    return {"tokens": text.tokens, "result": result, "sortIndexes": request.sortIndexes or []}


def _by_token_body(
    text: CapturedText, sae: SAERecord, request: TopKByTokenRequest, neurons: Mapping[int, NeuronBody]
) -> TopKByTokenBody:
    results: list[TokenTopFeaturesBody] = []
    for capture in text.captures[0]:
        features, values = _features(capture).tolist(), capture.values.tolist()
        for place, names, row in zip(capture.places or (), features, values, strict=True):
            if request.ignores_bos and place in text.specials:
                continue
            tops = [
                (name, value, neurons.get(name))
                for name, value in zip(names, row, strict=True)
                if value > 0 and not _is_too_dense(neurons.get(name), request.max_density)
            ]
            results.append(
                {
                    "position": place,
                    "token": text.tokens[place],
                    "isSpecial": place in text.specials,
                    "topFeatures": [
                        {"featureIndex": name, "activationValue": value, "feature": neuron}
                        for name, value, neuron in tops
                    ],
                }
            )
    return {"source": source_id(sae), "results": results}


def _features(capture: ActivationCapture) -> NDArray[np.int64]:
    assert capture.features is not None, "the capture is of the strongest features"
    return capture.features


def _is_too_dense(neuron: NeuronBody | None, limit: float | None) -> bool:
    density = None if neuron is None else neuron["frac_nonzero"]
    return limit is not None and density is not None and density > limit


async def _neurons(sae: SAERecord, indices: set[int]) -> dict[int, NeuronBody]:
    records = await get_backend().features().records(sae, indices)
    return {index: neuron_body(sae, record) for index, record in records.items()}
