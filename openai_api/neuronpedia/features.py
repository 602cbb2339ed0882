"""Features and searches of their explanations: GET /api/feature/..., POST /api/activation/get, /api/explanation/*."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http.response import HttpResponseBase

from inference.interventions import Site
from openai_api.backend import get_backend
from openai_api.endpoints.features import feature_number, look, searched_models
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.neuronpedia.schemas import (
    AllExplanationsRequest,
    ExplanationsBody,
    FoundExplanationBody,
    ModelExplanationsRequest,
    NeuronpediaActivationBody,
    NeuronpediaFeatureBody,
    SourceExplanationsRequest,
    StoredActivationsRequest,
)
from openai_api.neuronpedia.sources import (
    allowed_model,
    best_explanation,
    explanation_bodies,
    explanation_body,
    find_source,
    find_sources,
    neuron_body,
    source_id,
    source_in_path,
    source_set,
)
from steering.features.catalog import FeatureDetail, FeatureQuery, Histogram, SAERecord
from steering.features.labels import FeatureExample
from steering.features.logit_lens import LogitLens
from steering.saes.hooks import hook_name

PAGE = 20


async def get_feature(call: Call, model: str, source: str, index: str) -> HttpResponseBase:
    """Return a feature with its explanations, examples and logit lens."""
    sae = await source_in_path(call, f"{model}/{source}")
    number = feature_number(index)
    detail = await get_backend().features().detail(sae, number)
    lens, _ = await look(call, sae, number)
    return json_response(_feature_body(sae, detail, lens))


async def stored_activations(call: Call) -> HttpResponseBase:
    """Return the examples of a feature."""
    request = call.read(StoredActivationsRequest)
    sae = await find_source(call, request.modelId, request.source)
    detail = await get_backend().features().detail(sae, request.index)
    return json_response([activation_body(sae, request.index, one) for one in detail.examples])


async def search_all_explanations(call: Call) -> HttpResponseBase:
    """Search the labels of the models that the key may use."""
    request = call.read(AllExplanationsRequest)
    return await _search(call, request, searched_models(call, None))


async def search_model_explanations(call: Call) -> HttpResponseBase:
    request = call.read(ModelExplanationsRequest)
    return await _search(call, request, frozenset({allowed_model(call, request.modelId).name}))


async def search_source_explanations(call: Call) -> HttpResponseBase:
    request = call.read(SourceExplanationsRequest)
    saes = await find_sources(call, request.modelId, request.layers, param="layers")
    return await _search(call, request, frozenset({saes[0].model}), saes)


async def _search(
    call: Call, request: AllExplanationsRequest, models: frozenset[str], saes: Sequence[SAERecord] | None = None
) -> HttpResponseBase:
    """Search by words and by meaning, like /v1/features/search with ``meaning``."""
    offset = request.offset or 0
    query = FeatureQuery(
        text=request.query,
        models=models,
        saes=None if saes is None else frozenset(sae.name for sae in saes),
        limit=PAGE + 1,
        offset=offset,
        by_tokens=True,
    )
    features = get_backend().features()
    found = await features.search(query)
    known = {sae.name: sae for model in {one.model for one in found} for sae in await features.saes(model)}
    results: list[FoundExplanationBody] = []
    for one in found[:PAGE]:
        sae = known[one.sae]
        results.append({**best_explanation(sae, one), "relevance": one.relevance, "neuron": neuron_body(sae, one)})
    has_more = len(found) > PAGE
    body: ExplanationsBody = {
        "request": request.model_dump(exclude_none=True),
        "results": results,
        "resultsCount": len(results),
        "hasMore": has_more,
        "nextOffset": offset + PAGE if has_more else None,
    }
    return json_response(body)


def activation_body(sae: SAERecord, index: int, text: FeatureExample) -> NeuronpediaActivationBody:
    top = text.max_value
    return {
        "modelId": sae.model,
        "layer": source_id(sae),
        "source": source_id(sae),
        "index": str(index),
        "tokens": list(text.tokens),
        "values": list(text.values),
        "maxValue": top,
        "maxValueTokenIndex": text.values.index(top),
        "minValue": min(text.values),
        "binMin": None,
        "binMax": None,
        "binContains": None,
    }


def _feature_body(sae: SAERecord, detail: FeatureDetail, lens: LogitLens | None) -> NeuronpediaFeatureBody:
    index = detail.feature.index
    promoted, suppressed = (lens.promoted, lens.suppressed) if lens is not None else ((), ())
    return {
        **neuron_body(sae, detail.feature),
        "explanations": [
            *explanation_bodies(sae, detail.feature),
            *(explanation_body(sae, detail.feature, text, by) for text, by in detail.explanations),
        ],
        "sourceSetName": source_set(sae),
        "hookName": hook_name(_site(sae)),
        "hasVector": False,
        "activations": [activation_body(sae, index, one) for one in detail.examples],
        "pos_str": [token.text for token in promoted],
        "pos_values": [token.logit for token in promoted],
        "neg_str": [token.text for token in suppressed],
        "neg_values": [token.logit for token in suppressed],
        "freq_hist_data_bar_values": _bar_centres(detail.histogram),
        "freq_hist_data_bar_heights": list(detail.histogram.counts) if detail.histogram is not None else [],
    }


def _bar_centres(histogram: Histogram | None) -> list[float]:
    return [] if histogram is None else [(number + 0.5) * histogram.width for number in range(len(histogram.counts))]


def _site(sae: SAERecord) -> Site:
    kind: Any = sae.site
    return Site(sae.layer, kind)
