"""POST /v1/moderations: classify texts with a classifier's labels."""

from __future__ import annotations

import numpy as np
from django.http.response import HttpResponseBase

from core.errors import MillmError
from inference.client import EmbeddingRequest
from inference.registry.model_card import ModelCard
from inference.registry.records import ModelRecord
from openai_api.backend import get_backend
from openai_api.endpoints.completions import encode_prompts
from openai_api.generation.target import is_model_allowed, resolve_unsteered
from openai_api.generation.vectors import check_lengths, vectors_of
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.schemas.moderations import ModerationBody, ModerationsBody, ModerationsRequest

FLAGGED_FROM = 0.5
# Labels of harmless texts; any other label flags the text.
HARMLESS = frozenset({"ok", "safe", "neutral", "normal", "benign", "none", "nontoxic", "nothate", "notoffensive"})


async def create_moderations(call: Call) -> HttpResponseBase:
    request = call.read(ModerationsRequest)
    name = request.model if request.model is not None else only_classifier(call)
    model = await resolve_unsteered(call, name, "classification")
    if len(model.labels) == 1 and request.model is None:  # the labels are known only once the model has been loaded
        raise no_classifier()
    texts = await encode_prompts(model, list(request.input), param="input")
    check_lengths(texts, model)
    await call.reserve_tokens(sum(map(len, texts)))
    requests = [
        EmbeddingRequest(f"{call.id}/{i}", model.record.name, tuple(ids), i, priority=call.priority)
        for i, ids in enumerate(texts)
    ]
    body: ModerationsBody = {
        "id": call.answer_id("modr-"),
        "model": model.record.name,
        "results": [moderation_body(model, values) for values in await vectors_of(call, requests)],
    }
    return json_response(body)


def only_classifier(call: Call) -> str:
    """Return the default classifier, or the only one that the key may use. Raises MillmError 400 and 404."""
    records = get_backend().registry().records()
    allowed = [one for one in records if is_classifier(one) and is_model_allowed(call.key, one)]
    names = [one.name for one in allowed if one.is_default] or [one.name for one in allowed]
    if not names:
        raise no_classifier()
    if len(names) > 1:
        message = f"`model` is required, because this server has several classifiers: {', '.join(names[:10])}."
        raise invalid(message, param="model", code="missing_required_parameter")
    return names[0]


def no_classifier() -> MillmError:
    message = "This server has no classification model. Register one and send its name in `model`."
    return MillmError(message, status=404, code="model_not_found", param="model")


def is_classifier(record: ModelRecord) -> bool:
    """Return whether the model has several labels. A reranker has a single one, whose value is a score."""
    return record.kind == "classification" and record.num_labels != 1


def moderation_body(model: ModelCard, values: bytes) -> ModerationBody:
    scores = dict(zip(model.labels, map(float, np.frombuffer(values, "<f4")), strict=True))
    categories = {label: score >= FLAGGED_FROM for label, score in scores.items()}
    return {
        "flagged": any(is_on and not is_harmless(label) for label, is_on in categories.items()),
        "categories": categories,
        "category_scores": scores,
        "category_applied_input_types": {label: ["text"] for label in scores},
    }


def is_harmless(label: str) -> bool:
    return "".join(filter(str.isalnum, label.lower())) in HARMLESS
