"""Prompts of completions and embeddings: texts or token ids, one or many."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_PROMPTS = 2048

Prompt = str | list[int]  # text, or token ids
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
    ]
}


def _problem(message: str) -> PydanticCustomError:
    return PydanticCustomError("invalid_prompt", message)


def _prompts(value: Any) -> list[Prompt]:
    """Convert all four forms to a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise _problem("must be a string, a list of strings, a list of token ids, or a list of lists of token ids")
    prompts: list[Any] = [int(item) if type(item) is float and item.is_integer() else item for item in value]
    if _are_ids(prompts):
        return [prompts]
    if len(prompts) > MAX_PROMPTS:
        raise _problem(f"must have at most {MAX_PROMPTS} items, got {len(prompts)}")
    if all(isinstance(item, str) for item in prompts) or all(
        isinstance(item, list) and _are_ids(item) for item in prompts
    ):
        return prompts
    raise _problem(
        "must be a string, a list of strings, a list of token ids, or a list of lists of token ids, not a mixture"
    )


def _are_ids(items: list[Any]) -> bool:
    """Return whether these are token ids; the vocabulary is checked once the model is known."""
    return bool(items) and all(type(item) is int and 0 <= item < 2**31 for item in items)


Prompts = Annotated[list[Prompt], BeforeValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]
