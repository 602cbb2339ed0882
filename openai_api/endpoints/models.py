"""/v1/models: list, retrieve and unload models, in OpenAI's and Anthropic's form."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.http.response import HttpResponseBase
from pydantic import Field

from core.errors import quote
from inference.registry.records import ModelRecord
from openai_api.backend import get_backend
from openai_api.generation.target import (
    check_model_allowed,
    check_profile_allowed,
    find_model,
    is_model_allowed,
)
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import forbidden, invalid, speaks_anthropic
from openai_api.schemas.anthropic import AnthropicModelBody, AnthropicModelListBody
from openai_api.schemas.base import ListQuery
from openai_api.schemas.bodies import ModelBody, ModelDeletedBody, ModelListBody

DEFAULT_LIMIT = 20
MAX_LIMIT = 1_000


class ModelQuery(ListQuery):
    limit: int | None = Field(None, ge=1, le=MAX_LIMIT)
    after_id: str | None = Field(None, max_length=200)
    before_id: str | None = Field(None, max_length=200)


def anthropic_model(record: ModelRecord) -> AnthropicModelBody:
    length = get_backend().registry().max_model_len(record.name)
    return {
        "type": "model",
        "id": record.name,
        "display_name": record.name,
        "created_at": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
        "deprecated_at": None,
        "retires_at": None,
        "lifecycle": "active",
        "line": None,
        "max_input_tokens": length,
        "max_tokens": length,
        "capabilities": None,
    }


def anthropic_list(models: list[AnthropicModelBody], query: Mapping[str, Any]) -> AnthropicModelListBody:
    """Return the page between the cursors. Raises MillmError 400 for a cursor that is not a model."""
    query_params = ModelQuery.parse(query)
    ids = [model["id"] for model in models]
    start = _place(ids, query_params.after_id, "after_id") + 1 if query_params.after_id is not None else 0
    end = _place(ids, query_params.before_id, "before_id") if query_params.before_id is not None else len(ids)
    between = models[start:end]
    limit = query_params.limit or DEFAULT_LIMIT
    goes_back = query_params.before_id is not None and query_params.after_id is None
    shown = between[-limit:] if goes_back else between[:limit]
    return {
        "data": shown,
        "has_more": len(between) > len(shown),
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
    }


def _place(ids: list[str], cursor: str, param: str) -> int:
    if cursor not in ids:
        raise invalid(f"`{param}` must be the id of a model, got `{quote(cursor)}`.", param=param)
    return ids.index(cursor)


async def list_models(call: Call) -> HttpResponseBase:
    """List the models that the key may use, in Anthropic's form for its clients."""
    records = [one for one in get_backend().registry().records() if is_model_allowed(call.key, one)]
    if speaks_anthropic(call.request):
        return json_response(anthropic_list([anthropic_model(one) for one in records], call.request.GET))
    data = [model_body(record) for record in records]
    body: ModelListBody = {"object": "list", "data": data}
    return json_response(body)


async def get_model(call: Call, model: str) -> HttpResponseBase:
    """Return the model, or ``model:profile`` if the model has that profile: requests may name the model so."""
    call.model = model[:200]
    record, profile = find_model(get_backend().registry(), model)
    check_model_allowed(call.key, record)
    body = model_body(record)
    if speaks_anthropic(call.request) and profile is None:
        return json_response(anthropic_model(record))
    if profile is not None:
        check_profile_allowed(call.key, profile)
        label = await get_backend().find_profile(record.name, profile)
        body = {**body, "id": f"{record.name}:{profile}", "default_profile": label}
        if speaks_anthropic(call.request):
            return json_response({**anthropic_model(record), "id": body["id"]})
    return json_response(body)


async def delete_model(call: Call, model: str) -> HttpResponseBase:
    """Unload the model after its running requests; it stays registered, and the next request loads it again.

    ``deleted`` is true if it is unloaded or about to be, so a repeated call has the same answer.
    """
    record = _find(call, model)
    if call.key is not None and not call.key.may_manage_models:
        raise forbidden(
            "This API key can't unload models. Its owner needs the permission to change language models.",
            code="permission_denied",
        )
    await get_backend().unload(call, record)
    body: ModelDeletedBody = {"id": record.name, "object": "model", "deleted": True}
    return json_response(body)


def model_body(record: ModelRecord) -> ModelBody:
    num_layers, hidden_size = get_backend().registry().layers_and_width(record.name) or (None, None)
    return {
        "id": record.name,
        "object": "model",
        "created": record.created,
        "owned_by": "millm",
        "kind": record.kind,
        "is_default": record.is_default,
        "state": record.state,
        "max_model_len": get_backend().registry().max_model_len(record.name),
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "aliases": list(record.aliases),
        "default_profile": record.default_profile or None,
    }


def _find(call: Call, name: str) -> ModelRecord:
    call.model = name[:200]
    record = get_backend().registry().find(name)
    check_model_allowed(call.key, record)
    return record
