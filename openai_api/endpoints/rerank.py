"""POST /v1/rerank and /v1/score: relevance of documents to a query, from a cross-encoder."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from django.http.response import HttpResponseBase

from inference.client import EmbeddingRequest
from inference.registry.model_card import ModelCard
from inference.text.model_text import PromptTooLongError
from openai_api.generation.prompt import off_loop
from openai_api.generation.target import resolve_unsteered
from openai_api.generation.vectors import check_lengths, vectors_of
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.schemas.bodies import EmbeddingUsageBody
from openai_api.schemas.rerank import RerankBody, RerankRequest, RerankResultBody, ScoreBody, ScoreRequest


async def rerank(call: Call) -> HttpResponseBase:
    request = call.read(RerankRequest)
    model = await resolve_cross_encoder(call, request.model)
    pairs = [(request.query, document) for document in request.documents]
    scores = await score_pairs(call, model, pairs, param="documents")
    order = sorted(range(len(scores)), key=lambda place: -scores[place])  # stable sort: ties keep their order
    shows = request.return_documents is not False
    body: RerankBody = {
        "id": call.answer_id("rerank-"),
        "model": model.record.name,
        "results": [_result(place, scores[place], request.documents[place], shows=shows) for place in order][
            : request.top_n
        ],
        "usage": usage_of(call),
    }
    return json_response(body)


async def score(call: Call) -> HttpResponseBase:
    request = call.read(ScoreRequest)
    model = await resolve_cross_encoder(call, request.model)
    scores = await score_pairs(call, model, request.pairs, param="text_2")
    body: ScoreBody = {
        "id": call.answer_id("score-"),
        "object": "list",
        "created": int(time.time()),
        "model": model.record.name,
        "data": [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)],
        "usage": usage_of(call),
    }
    return json_response(body)


async def resolve_cross_encoder(call: Call, name: str) -> ModelCard:
    model = await resolve_unsteered(call, name, "classification")
    if len(model.labels) != 1:
        raise invalid(
            f"The model `{model.record.name}` has {len(model.labels)} labels; scores require a "
            "cross-encoder, which has one. Use /v1/moderations.",
            param="model",
            code="wrong_model_kind",
        )
    return model


async def score_pairs(call: Call, model: ModelCard, pairs: Sequence[tuple[str, str]], *, param: str) -> list[float]:
    """Return the scores in the order of the pairs. Raises MillmError."""
    try:
        encoded = await off_loop(
            lambda: [model.text.encode_pair(*pair) for pair in pairs], size=sum(len(a) + len(b) for a, b in pairs)
        )
    except PromptTooLongError as error:
        raise error.with_param(param) from None
    check_lengths([pair.ids for pair in encoded], model, param=param)
    if any(not pair.ids for pair in encoded):
        raise invalid("A pair of texts must not be empty.", param=param, code="invalid_prompt")
    await call.reserve_tokens(sum(len(pair.ids) for pair in encoded))
    requests = [
        EmbeddingRequest(f"{call.id}/{i}", model.record.name, tuple(pair.ids), i, tuple(pair.type_ids), call.priority)
        for i, pair in enumerate(encoded)
    ]
    return [float(np.frombuffer(values, "<f4")[0]) for values in await vectors_of(call, requests)]


def usage_of(call: Call) -> EmbeddingUsageBody:
    num_tokens = call.outcome.usage.prompt_tokens
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def _result(place: int, value: float, document: str, *, shows: bool) -> RerankResultBody:
    result: RerankResultBody = {"index": place, "relevance_score": value}
    if shows:
        result["document"] = {"text": document}
    return result
