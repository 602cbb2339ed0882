"""/v1/features: search SAE features by label, and retrieve one."""

from __future__ import annotations

import asyncio

import numpy as np
from django.conf import settings
from django.http.response import HttpResponseBase

from core.errors import MillmError
from inference.registry.records import ModelNotFoundError, ModelRecord
from openai_api.backend import get_backend
from openai_api.endpoints.embeddings import embed
from openai_api.generation.target import check_model_allowed, is_model_allowed, ready_model
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import client_message, invalid, timed_out
from openai_api.schemas.features import (
    CofiringBody,
    ExampleBandBody,
    FeatureBody,
    FeatureDetailBody,
    FeatureEffectBody,
    FeatureExampleBody,
    FeatureListBody,
    FeatureSearchRequest,
    HistogramBody,
    LensTokenBody,
    LogitLensBody,
    NeighboursBody,
    QuantilesBody,
)
from steering.features.catalog import (
    ExampleBand,
    FeatureDetail,
    FeatureQuery,
    FeatureRecord,
    Histogram,
    LensUnavailableError,
    QueryEmbedding,
    SAERecord,
)
from steering.features.labels import FeatureExample
from steering.features.logit_lens import LensToken, LogitLens
from steering.features.neighbours import MAX_NEIGHBOURS

DEFAULT_LIMIT = 20
DEFAULT_NEIGHBOURS = 10
_MAX_DIGITS = 9


async def search_features(call: Call) -> HttpResponseBase:
    """Search the features of the models that the key may use."""
    request = call.read(FeatureSearchRequest)
    sae = await find_sae(call, request.sae) if request.sae is not None else None
    limit = request.limit or DEFAULT_LIMIT
    query = FeatureQuery(
        text=request.query,
        models=searched_models(call, request.model),
        saes=frozenset({sae.name}) if sae is not None else None,
        limit=limit + 1,
        offset=request.offset or 0,
        meaning=await embed_query(call, request) if request.embedding_model is not None else None,
        sort=request.sort or "relevance",
        by_tokens=bool(request.meaning),
    )
    found = await get_backend().features().search(query)
    body: FeatureListBody = {
        "object": "list",
        "data": [feature_body(one) for one in found[:limit]],
        "has_more": len(found) > limit,
    }
    return json_response(body)


async def embed_query(call: Call, request: FeatureSearchRequest) -> QueryEmbedding:
    """Embed the query with a model that the key may use. Raises MillmError."""
    assert request.embedding_model is not None
    try:
        record = get_backend().registry().find(request.embedding_model)
    except ModelNotFoundError:
        message = f"The model `{request.embedding_model}` does not exist."
        raise MillmError(message, status=404, code="model_not_found", param="embedding_model") from None
    check_model_allowed(call.key, record)
    model = await ready_model(record, "embedding")
    ids = await asyncio.to_thread(model.text.encode, request.query)
    values = (await embed(call, model, [ids[: model.max_model_len]]))[0]
    vector = np.frombuffer(values, "<f4").astype(np.float64)
    return QueryEmbedding(record.name, tuple((vector / (np.linalg.norm(vector) or 1.0)).tolist()))


async def get_feature(call: Call, sae: str, index: str) -> HttpResponseBase:
    """Return label, statistics and examples, and the logit lens unless the query has ``logit_lens=false``."""
    wants_lens = parse_logit_lens(call.request.GET.get("logit_lens", "true"))
    record = await find_sae(call, sae)
    number = feature_number(index)
    found = await get_backend().features().detail(record, number)
    lens, reason = await look(call, record, number) if wants_lens else (None, None)
    body: FeatureDetailBody = {
        **feature_body(found.feature),
        "explanations": [{"text": text, "source": source} for text, source in found.explanations],
        "layer": record.layer,
        "site": record.site,
        "decoder_norm": found.decoder_norm,
        "max_activation_source": found.max_activation_source or None,  # type: ignore[typeddict-item]  # two values
        "examples_source": found.examples_source,
        "histogram": histogram_body(found.histogram),
        "activation_quantiles": quantiles_body(found),
        "examples": [example_body(one) for one in found.examples],
        "example_bands": [band_body(one) for one in found.bands],
        "logit_lens": lens_body(lens) if lens is not None else None,
        "logit_lens_error": reason,
    }
    return json_response(body)


async def get_effect(call: Call, sae: str, index: str) -> HttpResponseBase:
    """Return the measured effect of a feature."""
    record = await find_sae(call, sae)
    number = feature_number(index)
    found = await get_backend().features().effect(record, number)
    body: FeatureEffectBody = {
        "object": "feature.effect",
        "sae": record.name,
        "index": number,
        "strength": found.strength,
        "strength_in_max_act": found.strength_in_max_act,
        "kl": found.kl,
        "push": found.push,
        "is_capped": found.is_capped,
        "output_score": found.output_score,
        "base_output_score": found.base_output_score,
        "steered_activation": found.steered_activation,
        "base_activation": found.base_activation,
        "fluency": found.fluency,
        "steers_well": found.steers_well,
        "curve": list(found.curve),
        "samples": [{"prompt": prompt, "before": before, "after": after} for prompt, before, after in found.samples],
        "measured_at": found.measured_at,
    }
    return json_response(body)


async def get_cofiring(call: Call, sae: str, index: str) -> HttpResponseBase:
    """Return the features that are active on the same tokens."""
    limit = count_limit(call.request.GET.get("limit", str(DEFAULT_NEIGHBOURS)), MAX_NEIGHBOURS)
    record = await find_sae(call, sae)
    number = feature_number(index)
    found = await get_backend().features().cofiring(record, number)
    body: CofiringBody = {
        "object": "list",
        "sae": record.name,
        "index": number,
        "num_tokens": found.num_tokens,
        "data": [
            {"index": one.index, "label": one.label or None, "phi": one.phi, "tokens": one.tokens}
            for one in found.features[:limit]
        ],
    }
    return json_response(body)


async def get_neighbours(call: Call, sae: str, index: str) -> HttpResponseBase:
    """Return the features with the most similar decoder rows."""
    limit = count_limit(call.request.GET.get("limit", str(DEFAULT_NEIGHBOURS)), MAX_NEIGHBOURS)
    record = await find_sae(call, sae)
    number = feature_number(index)
    found = await get_backend().features().neighbours(record, number, limit)
    body: NeighboursBody = {
        "object": "list",
        "sae": record.name,
        "index": number,
        "data": [{"index": one.index, "label": one.label or None, "cosine": one.cosine} for one in found],
    }
    return json_response(body)


def count_limit(value: str, most: int) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS and 1 <= int(value) <= most):
        raise invalid(f"`limit` must be an integer from 1 to {most}.", param="limit")
    return int(value)


async def find_sae(call: Call, name: str) -> SAERecord:
    """Return the SAE of that name, if the key may use its model. Raises MillmError 404 and 403."""
    sae = await get_backend().features().sae(name)
    check_model_allowed(call.key, find_model(call, sae.model))
    return sae


def searched_models(call: Call, name: str | None) -> frozenset[str]:
    """Return the names of the models whose features the request may find."""
    if name is None:
        records = get_backend().registry().records()
        return frozenset(record.name for record in records if is_model_allowed(call.key, record))
    record = find_model(call, name)
    check_model_allowed(call.key, record)
    return frozenset({record.name})


def find_model(call: Call, name: str) -> ModelRecord:
    record = get_backend().registry().find(name)
    call.use_model(record.name)
    return record


async def look(call: Call, sae: SAERecord, index: int) -> tuple[LogitLens | None, str | None]:
    """Return the logit lens, or why there is none. Raises MillmError 503 and 504."""
    try:
        async with asyncio.timeout_at(call.deadline):
            return await get_backend().features().lens(sae, index), None
    except LensUnavailableError as error:
        return None, client_message(error)
    except TimeoutError:
        raise timed_out(settings.MILLM_REQUEST_TIMEOUT) from None


def parse_logit_lens(value: str) -> bool:
    if value not in {"true", "false"}:
        raise invalid("`logit_lens` must be true or false.", param="logit_lens")
    return value == "true"


def feature_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise MillmError(
            "A feature index must be an integer of at least 0.", status=404, code="feature_not_found", param="index"
        )
    return int(text)


def feature_body(record: FeatureRecord) -> FeatureBody:
    return {
        "object": "feature",
        "sae": record.sae,
        "model": record.model,
        "index": record.index,
        "label": record.label,
        "description": record.description,
        "source": record.source,
        "max_activation": record.max_activation,
        "density": record.density,
        "top_tokens": list(record.top_tokens),
        "output_tokens": [{"token": token, "value": value} for token, value in record.output_tokens],
        "label_score": record.label_score,
        "relevance": record.relevance,
        "steers_well": record.steers_well,
    }


def example_body(example: FeatureExample) -> FeatureExampleBody:
    return {"tokens": list(example.tokens), "values": list(example.values), "max_value": example.max_value}


def band_body(band: ExampleBand) -> ExampleBandBody:
    examples = [example_body(one) for one in band.examples]
    return {"low": band.low, "high": band.high, "num_texts": band.num_texts, "examples": examples}


def histogram_body(histogram: Histogram | None) -> HistogramBody | None:
    return None if histogram is None else {"width": histogram.width, "counts": list(histogram.counts)}


def quantiles_body(found: FeatureDetail) -> QuantilesBody | None:
    if (known := found.quantiles) is None:
        return None
    return {"p99": known.p99, "p999": known.p999, "n": known.n, "corpus": found.corpus}


def lens_body(lens: LogitLens) -> LogitLensBody:
    return {
        "promoted": [token_body(token) for token in lens.promoted],
        "suppressed": [token_body(token) for token in lens.suppressed],
    }


def token_body(token: LensToken) -> LensTokenBody:
    return {"id": token.id, "token": token.text, "logit": token.logit}
