"""/v1/models: list, retrieve and unload models, in OpenAI's and Anthropic's form."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
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
    listed_profiles,
)
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import forbidden, invalid, speaks_anthropic
from openai_api.schemas.anthropic import AnthropicModelBody, AnthropicModelListBody
from openai_api.schemas.base import ListQuery
from openai_api.schemas.bodies import ModelBody, ModelDeletedBody, ModelListBody

DEFAULT_LIMIT = 20
MAX_LIMIT = 1_000


class ModelListQuery(ListQuery):
    """``profiles``: whether to list ``model:profile`` too; the default is MILLM_LIST_PROFILES."""

    profiles: bool | None = None


class AnthropicModelQuery(ModelListQuery):
    limit: int | None = Field(None, ge=1, le=MAX_LIMIT)
    after_id: str | None = Field(None, max_length=200)
    before_id: str | None = Field(None, max_length=200)


def anthropic_model(record: ModelRecord, profile: str = "") -> AnthropicModelBody:
    length = get_backend().registry().max_model_len(record.name)
    name = f"{record.name}:{profile}" if profile else record.name
    return {
        "type": "model",
        "id": name,
        "display_name": name,
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
    query_params = AnthropicModelQuery.parse(query)
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
    """List the models that the key may use, in Anthropic's form for its clients.

    With ``profiles``, for clients that can choose nothing but a model, each model is followed by its profiles.
    """
    is_anthropic = speaks_anthropic(call.request)
    query = (AnthropicModelQuery if is_anthropic else ModelListQuery).parse(call.request.GET)
    records = [one for one in get_backend().registry().records() if is_model_allowed(call.key, one)]
    lists_profiles = settings.MILLM_LIST_PROFILES if query.profiles is None else query.profiles
    profiles = {one.name: await listed_profiles(call.key, one) if lists_profiles else {} for one in records}
    if is_anthropic:
        listed = [anthropic_model(one, profile) for one in records for profile in ("", *profiles[one.name])]
        return json_response(anthropic_list(listed, call.request.GET))
    body: ModelListBody = {"object": "list", "data": []}
    for record in records:
        body["data"] += [model_body(record), *(profile_body(record, *each) for each in profiles[record.name].items())]
    return json_response(body)


async def get_model(call: Call, model: str) -> HttpResponseBase:
    """Return the model, or ``model:profile`` if the model has that profile: requests may name the model so."""
    call.model = model[:200]
    record, profile = find_model(get_backend().registry(), model)
    check_model_allowed(call.key, record)
    label = ""
    if profile is not None:
        check_profile_allowed(call.key, profile)
        label = await get_backend().find_profile(record.name, profile)
    if speaks_anthropic(call.request):
        return json_response(anthropic_model(record, profile or ""))
    return json_response(profile_body(record, profile, label) if profile else model_body(record))


async def delete_model(call: Call, model: str) -> HttpResponseBase:
    """Unload the model after its running requests; it stays registered, and the next request loads it again.

    ``deleted`` is true if it is unloaded or about to be, so a repeated call has the same answer.
    """
    record = _find(call, model)
    await unload(call, record)
    body: ModelDeletedBody = {"id": record.name, "object": "model", "deleted": True}
    return json_response(body)


async def unload(call: Call, record: ModelRecord) -> None:
    """Unload the model after its running requests. Raises MillmError 403 if the key may not."""
    if call.key is not None and not call.key.may_manage_models:
        raise forbidden(
            "This API key can't unload models. Its owner needs the permission to change language models.",
            code="permission_denied",
        )
    await get_backend().unload(call, record)


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


def profile_body(record: ModelRecord, profile: str, label: str) -> ModelBody:
    """Return a model with a profile as a model of its own. ``label``: the profile's name and version."""
    return {
        **model_body(record),
        "id": f"{record.name}:{profile}",
        "is_default": False,
        "aliases": [f"{alias}:{profile}" for alias in record.aliases],
        "default_profile": label,
    }


def _find(call: Call, name: str) -> ModelRecord:
    call.model = name[:200]
    record = get_backend().registry().find(name)
    check_model_allowed(call.key, record)
    return record
