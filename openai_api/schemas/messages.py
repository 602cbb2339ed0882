"""Chat messages by role. Content is text; other modalities are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from openai_api.schemas.base import Part

MAX_MESSAGES = 2048
MAX_PARTS = 1024
MAX_TOOL_CALLS = 128
REASONING_NAMES = ("reasoning_content", "reasoning")  # clients send back what they received


class TextPart(Part):
    type: Literal["text"]
    text: str


class RefusalPart(Part):
    """A refusal of the assistant, treated as text."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


def _only_text(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else "text"
    if isinstance(kind, str) and kind not in {"text", "refusal"}:
        raise PydanticCustomError(
            "unsupported_parameter", "has the unsupported type `{kind}`. Supported: text", {"kind": kind[:50]}
        )
    return value


def _part_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "~refusal" if kind == "refusal" else "~text"


def _content_kind(value: Any) -> str:
    return "~parts" if isinstance(value, list) else "~string"


ContentPart = Annotated[
    Annotated[TextPart, Tag("~text")] | Annotated[RefusalPart, Tag("~refusal")],
    Discriminator(_part_kind),
    BeforeValidator(_only_text),
]
Content = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[list[ContentPart], Field(min_length=1, max_length=MAX_PARTS), Tag("~parts")],
    Discriminator(_content_kind),
]
Name = Annotated[str, Field(min_length=1, max_length=64)]


class FunctionCall(Part):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str


class ToolCall(Part):
    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"]
    function: FunctionCall


class SystemMessage(Part):
    role: Literal["system", "developer"]
    content: Content
    name: Name | None = None


class UserMessage(Part):
    role: Literal["user"]
    content: Content
    name: Name | None = None


class AssistantMessage(Part):
    role: Literal["assistant"]
    content: Content | None = None
    refusal: str | None = None
    name: Name | None = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=MAX_TOOL_CALLS)
    reasoning_content: str | None = Field(
        None, description="Reasoning of an earlier answer. Used if the chat template includes it."
    )
    reasoning: str | None = Field(None, description="Alias of reasoning_content.")

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and not self.refusal and not self.tool_calls:
            raise PydanticCustomError("missing_content", "must have `content`, `tool_calls` or `refusal`")
        return self


class ToolMessage(Part):
    role: Literal["tool"]
    content: Content
    tool_call_id: Annotated[str, Field(min_length=1, max_length=256)]


class FunctionMessage(Part):
    role: Literal["function"]
    content: Content | None = None
    name: Name


_TAGS = {
    "system": "~system",
    "developer": "~system",
    "user": "~user",
    "assistant": "~assistant",
    "tool": "~tool",
    "function": "~function",
}


def _role(value: Any) -> str | None:
    role = value.get("role") if isinstance(value, dict) else getattr(value, "role", None)
    return _TAGS.get(role) if isinstance(role, str) else None


Message = Annotated[
    Annotated[SystemMessage, Tag("~system")]
    | Annotated[UserMessage, Tag("~user")]
    | Annotated[AssistantMessage, Tag("~assistant")]
    | Annotated[ToolMessage, Tag("~tool")]
    | Annotated[FunctionMessage, Tag("~function")],
    Discriminator(
        _role,
        custom_error_type="invalid_role",
        custom_error_message=f"must have a `role`: one of {', '.join(_TAGS)}",
    ),
]


def text_of_raw(content: Any) -> str | None:
    """Return the text of validated content in JSON form."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    return "\n".join(str(part.get("text", part.get("refusal", ""))) for part in content)


def text_of(content: str | list[TextPart | RefusalPart] | None) -> str:
    """Return the text of a message's content; parts become lines."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)
