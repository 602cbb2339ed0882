"""The models of this server as Anthropic's clients list them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from inference.registry import ModelRecord
from openai_api.backend import get_backend
from openai_api.errors import invalid, quote
from openai_api.schemas.anthropic_bodies import AnthropicModelBody, AnthropicModelListBody
from openai_api.schemas.listing import ListQuery

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
    """The page between the cursors; raises ApiError 400 for one that is no model."""
    wanted = ModelQuery.parse(query)
    ids = [model["id"] for model in models]
    start = _place(ids, wanted.after_id, "after_id") + 1 if wanted.after_id is not None else 0
    end = _place(ids, wanted.before_id, "before_id") if wanted.before_id is not None else len(ids)
    between = models[start:end]
    limit = wanted.limit or DEFAULT_LIMIT
    goes_back = wanted.before_id is not None and wanted.after_id is None
    shown = between[-limit:] if goes_back else between[:limit]
    return {
        "data": shown,
        "has_more": len(between) > len(shown),
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
    }


def _place(ids: list[str], cursor: str, param: str) -> int:
    if cursor not in ids:
        raise invalid(f"`{param}`: there is no model `{quote(cursor)}`.", param=param)
    return ids.index(cursor)
