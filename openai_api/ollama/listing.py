"""GET /ollama/api/tags, ps and version, and POST /ollama/api/show: which models there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.http.response import HttpResponseBase

from inference.registry.records import ModelRecord
from openai_api.backend import get_backend
from openai_api.generation.target import check_model_allowed, check_profile_allowed, find_model, loaded_model
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.ollama.endpoints import read
from openai_api.ollama.names import Listed, listed_names, own_name
from openai_api.ollama.schemas import (
    OllamaDetailsBody,
    OllamaModelBody,
    OllamaPsBody,
    OllamaRunningModelBody,
    OllamaShowBody,
    OllamaShowRequest,
    OllamaTagsBody,
    OllamaVersionBody,
)

OLLAMA_VERSION = "0.13.0"  # clients compare it: thinking, tools and logprobs are there
ARCHITECTURE = "millm"  # the prefix of facts in `model_info`
FOREVER = timedelta(days=365 * 100)
UNKNOWN: OllamaDetailsBody = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}
_PARAMETERS = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}


async def list_tags(call: Call) -> HttpResponseBase:
    body: OllamaTagsBody = {"models": [_listed(one) async for one in listed_names(call.key)]}
    return json_response(body)


async def list_running(call: Call) -> HttpResponseBase:
    loaded = [one async for one in listed_names(call.key) if not one.profile and one.record.state == "loaded"]
    body: OllamaPsBody = {"models": [_running(one) for one in loaded]}
    return json_response(body)


async def get_version(call: Call) -> HttpResponseBase:
    body: OllamaVersionBody = {"version": OLLAMA_VERSION}
    return json_response(body)


async def show_model(call: Call) -> HttpResponseBase:
    """Describe a model, or a model with one of its profiles. Does not load it."""
    request = read(call, OllamaShowRequest)
    name = request.model or request.name or ""
    record, profile = find_model(get_backend().registry(), await own_name(name))
    call.use_model(record.name)
    check_model_allowed(call.key, record)
    label = record.default_profile or None
    if profile is not None:
        check_profile_allowed(call.key, profile)
        label = await get_backend().find_profile(record.name, profile)
    body: OllamaShowBody = {
        "modelfile": "",
        "parameters": _parameters(record.default_sampling),
        "template": "",
        "details": UNKNOWN,
        "model_info": _facts(record),
        "capabilities": await _capabilities(record),
        "modified_at": _time(record.created),
        "millm": {"profile": label, "state": record.state},
    }
    return json_response(body)


def _listed(listed: Listed) -> OllamaModelBody:
    return {
        "name": listed.name,
        "model": listed.name,
        "modified_at": _time(listed.record.created),
        "size": 0,
        "digest": listed.digest,
        "details": UNKNOWN,
    }


def _running(listed: Listed) -> OllamaRunningModelBody:
    record = listed.record
    keep_alive_s = settings.MILLM_MODEL_KEEP_ALIVE if record.keep_alive_s is None else record.keep_alive_s
    is_kept = record.is_pinned or keep_alive_s == 0
    expires_at = datetime.now(UTC) + (FOREVER if is_kept else timedelta(seconds=keep_alive_s))
    return {
        "name": listed.name,
        "model": listed.name,
        "size": 0,
        "size_vram": 0,
        "digest": listed.digest,
        "details": UNKNOWN,
        "expires_at": expires_at.isoformat().replace("+00:00", "Z"),
        "context_length": get_backend().registry().max_model_len(record.name) or 0,
    }


def _facts(record: ModelRecord) -> dict[str, Any]:
    registry = get_backend().registry()
    num_layers, hidden_size = registry.layers_and_width(record.name) or (None, None)
    facts = {
        "context_length": registry.max_model_len(record.name),
        "block_count": num_layers,
        "embedding_length": hidden_size,
    }
    known = {f"{ARCHITECTURE}.{name}": value for name, value in facts.items() if value is not None}
    return {"general.architecture": ARCHITECTURE, "general.basename": record.name, **known}


async def _capabilities(record: ModelRecord) -> list[str]:
    """Return what the model can do. Tools and thinking are known from the template of a loaded model."""
    if record.kind != "generation":
        return [record.kind]
    if record.state != "loaded":
        return ["completion"]
    dialect = (await loaded_model(record)).text.dialect
    return [
        "completion",
        *(["tools"] if dialect.tools is not None else []),
        *(["thinking"] if dialect.thinking is not None else []),
    ]


def _parameters(sampling: Mapping[str, Any]) -> str:
    """Return the model's default parameters as the lines of a Modelfile."""
    quoted: Callable[[Any], str] = lambda value: f'"{value}"' if isinstance(value, str) else str(value)  # noqa: E731
    lines = [
        f"{_PARAMETERS.get(name, name):<30} {quoted(one)}"
        for name, value in sampling.items()
        for one in (value if isinstance(value, list) else [value])
    ]
    return "\n".join(lines)


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
