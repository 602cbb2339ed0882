"""What questions are asked about: messages, calls of tools and what they gave back.

Items are those of a response. What a decision knows beside them (JSON as a part, custom tools) is put into their form.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from openai_api.responses.schemas.items import MAX_ITEMS, Content, InputItem

MAX_JSON_BYTES = 256 * 1024
MAX_JSON_LEVELS = 32
MAX_JSON_VALUES = 10_000
KINDS = ("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")


def _plain_item(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kind = value.get("type", "message" if "role" in value else None)
    if kind is not None and kind not in KINDS:
        raise PydanticCustomError(
            "unsupported_parameter",
            "items of type “{kind}” are not supported, only {known}",
            {"kind": str(kind)[:50], "known": ", ".join(KINDS)},
        )
    if kind is None:
        raise PydanticCustomError("invalid_item", "each item needs a type out of {known}", {"known": ", ".join(KINDS)})
    if kind == "custom_tool_call":
        return _function_call(value)
    plain = {**value, "type": kind.removeprefix("custom_tool_call_output") or "function_call_output"}
    for name in ("content", "output"):
        if name in plain:
            plain[name] = _plain_parts(plain[name])
    return plain


def _function_call(value: dict[str, Any]) -> dict[str, Any]:
    """A custom tool takes a text where a function takes an object; to the model's template both are text."""
    if not isinstance(value.get("input"), str):
        raise PydanticCustomError("invalid_type", "a custom tool call needs its “input”, a string")
    return {**value, "type": "function_call", "arguments": value["input"]}


def _plain_parts(value: Any) -> Any:
    return [_plain_part(part) for part in value] if isinstance(value, list) else value


def _plain_part(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "input_json":
        return part
    data = part.get("data")
    if not isinstance(data, dict) and not (isinstance(data, list) and all(isinstance(one, dict) for one in data)):
        raise PydanticCustomError("invalid_type", "the “data” of a JSON part is an object or a list of objects")
    _check_json(data)
    return {"type": "input_text", "text": json.dumps(data, ensure_ascii=False, separators=(",", ":"))}


def _check_json(data: object) -> None:
    """OpenAI's limits: levels, values and bytes. The body itself is bounded, so this ends."""
    level, level_number, num_values = [data], 0, 0
    while level:
        level_number += 1
        children = [child for value in level for child in _children(value)]
        num_values += len(children)
        level = [child for child in children if isinstance(child, dict | list)]
        if level and level_number >= MAX_JSON_LEVELS:
            raise PydanticCustomError("invalid_value", f"a JSON part has at most {MAX_JSON_LEVELS} levels")
    if num_values > MAX_JSON_VALUES:
        raise PydanticCustomError("invalid_value", f"a JSON part has at most {MAX_JSON_VALUES} values")
    if len(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")) > MAX_JSON_BYTES:
        raise PydanticCustomError("invalid_value", f"a JSON part has at most {MAX_JSON_BYTES} bytes")


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


EvidenceItem = Annotated[InputItem, BeforeValidator(_plain_item)]
Evidence = Annotated[
    Annotated[str, Field(min_length=1), Tag("~string")]
    | Annotated[list[EvidenceItem], Field(min_length=1, max_length=MAX_ITEMS), Tag("~items")],
    Discriminator(lambda value: "~items" if isinstance(value, list) else "~string"),
]
Instructions = Annotated[Content, BeforeValidator(_plain_parts)]
