"""POST /v1/moderations: the request and the answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from openai_api.schemas.generation import UnsteeredSchema

MAX_INPUTS = 2048
_STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_INPUTS}


def _inputs(value: Any) -> Any:
    """Return a text, several texts, or the parts of one input."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value or len(value) > MAX_INPUTS:
        raise PydanticCustomError("invalid_prompt", f"must be a string, or 1 to {MAX_INPUTS} strings or text parts")
    return ["\n".join(map(_text_of_part, value))] if all(isinstance(item, dict) for item in value) else value


def _text_of_part(part: dict[str, Any]) -> str:
    if part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise PydanticCustomError("unsupported_parameter", "has a part with an unsupported type. Supported: text")
    text: str = part["text"]
    return text


class ModerationsRequest(UnsteeredSchema):
    model: str | None = Field(None, description="A registered classifier. Default: the default one, or the only one.")
    input: Annotated[
        list[str],
        BeforeValidator(_inputs),
        WithJsonSchema({"anyOf": [{"type": "string"}, _STRINGS, {"type": "array"}]}),
    ]


class ModerationBody(TypedDict):
    """``categories`` are the labels of the model. The input is flagged if a label that is not harmless applies."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]


class ModerationsBody(TypedDict):
    id: str
    model: str
    results: list[ModerationBody]
