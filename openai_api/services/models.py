"""The models of this server, as clients list, look up and unload them."""

from __future__ import annotations

from django.http.response import HttpResponseBase

from inference.registry import ModelNotFoundError, ModelRecord
from openai_api.backend import get_backend
from openai_api.call import Call
from openai_api.endpoint import json_response
from openai_api.errors import forbidden, model_not_found
from openai_api.schemas.bodies import ModelBody, ModelDeletedBody, ModelListBody
from openai_api.services.target import check_model_allowed, is_model_allowed


async def list_models(call: Call) -> HttpResponseBase:
    """Those that the key may use."""
    records = get_backend().registry().records()
    data = [model_body(record) for record in records if is_model_allowed(call.key, record)]
    body: ModelListBody = {"object": "list", "data": data}
    return json_response(body)


async def get_model(call: Call, name: str) -> HttpResponseBase:
    return json_response(model_body(_find(call, name)))


async def delete_model(call: Call, name: str) -> HttpResponseBase:
    """Unloads the model; it stays registered, and the next request loads it again.

    ``deleted`` says that it is unloaded or about to be, so a repeated call has the same answer.
    """
    record = _find(call, name)
    if call.key is not None and not call.key.may_manage_models:
        raise forbidden(
            "This key may not unload models. Its owner needs the permission to change language models.",
            code="permission_denied",
        )
    await get_backend().unload(call, record)
    body: ModelDeletedBody = {"id": record.name, "object": "model", "deleted": True}
    return json_response(body)


def model_body(record: ModelRecord) -> ModelBody:
    return {
        "id": record.name,
        "object": "model",
        "created": record.created,
        "owned_by": "millm",
        "kind": record.kind,
        "is_default": record.is_default,
        "state": record.state,
        "max_model_len": get_backend().registry().max_model_len(record.name),
        "aliases": list(record.aliases),
        "default_profile": record.default_profile or None,
    }


def _find(call: Call, name: str) -> ModelRecord:
    call.entry.model = name[:200]
    try:
        record = get_backend().registry().find(name)
    except ModelNotFoundError:
        raise model_not_found(name) from None
    check_model_allowed(call.key, record)
    return record
