"""Items of an input: messages, tool calls and their outputs, reasoning, and references to stored items."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from openai_api.schemas.base import Part
from openai_api.schemas.messages import RefusalPart

MAX_ITEMS = 2048
MAX_PARTS = 1024
MAX_CALL_CHARACTERS = 2**20  # of one call's arguments
MAX_COMPACTION = 2**20

ItemId = Annotated[str, Field(min_length=1, max_length=64)]
CallId = Annotated[str, Field(min_length=1, max_length=256)]
Status = Literal["in_progress", "completed", "incomplete"]
_TEXT_KINDS = {"input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text"}


class ItemText(Part):
    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


def _only_text(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else "text"
    if isinstance(kind, str) and kind not in _TEXT_KINDS:
        raise PydanticCustomError(
            "unsupported_parameter", "has the unsupported type `{kind}`. Supported: text", {"kind": kind[:50]}
        )
    return value


def _part_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "~refusal" if kind == "refusal" else "~text"


ContentPart = Annotated[
    Annotated[ItemText, Tag("~text")] | Annotated[RefusalPart, Tag("~refusal")],
    Discriminator(_part_kind),
    BeforeValidator(_only_text),
]
Content = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[ContentPart], Field(max_length=MAX_PARTS), Tag("~parts")],
    Discriminator(lambda value: "~parts" if isinstance(value, list) else "~string"),
]


class MessageItem(Part):
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: ItemId | None = None
    status: Status | None = None


class FunctionCallItem(Part):
    type: Literal["function_call"]
    call_id: CallId
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: Annotated[str, Field(max_length=MAX_CALL_CHARACTERS)]
    id: ItemId | None = None
    status: Status | None = None


class FunctionOutputItem(Part):
    type: Literal["function_call_output"]
    call_id: CallId
    output: Content
    id: ItemId | None = None
    status: Status | None = None


class ReasoningItem(Part):
    type: Literal["reasoning"]
    summary: Annotated[list[ContentPart], Field(max_length=MAX_PARTS)] = []
    content: Annotated[list[ContentPart], Field(max_length=MAX_PARTS)] | None = None
    id: ItemId | None = None
    status: Status | None = None


class FoundText(Part):
    """A search result."""

    file_id: Annotated[str, Field(max_length=64)] | None = None
    filename: Annotated[str, Field(max_length=256)] | None = None
    text: str | None = None
    score: float | None = None
    attributes: dict[str, str | bool | float] | None = None


class FileSearchItem(Part):
    type: Literal["file_search_call"]
    queries: Annotated[list[Annotated[str, Field(max_length=MAX_CALL_CHARACTERS)]], Field(max_length=MAX_PARTS)]
    results: Annotated[list[FoundText], Field(max_length=MAX_PARTS)] | None = None
    id: ItemId | None = None
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"] | None = None


def _readable(content: str) -> str:
    try:
        summary_in(content)
    except ValueError:
        raise PydanticCustomError("invalid_item", "must be a compaction made by this server") from None
    return content


class McpListedTool(Part):
    name: Annotated[str, Field(max_length=256)]
    input_schema: dict[str, Any]
    description: Annotated[str, Field(max_length=MAX_CALL_CHARACTERS)] | None = None
    annotations: dict[str, Any] | None = None


class McpListItem(Part):
    type: Literal["mcp_list_tools"]
    server_label: Annotated[str, Field(max_length=64)]
    tools: Annotated[list[McpListedTool], Field(max_length=MAX_PARTS)]
    error: Any = None
    id: ItemId | None = None


class McpCallItem(Part):
    type: Literal["mcp_call"]
    server_label: Annotated[str, Field(max_length=64)]
    name: Annotated[str, Field(max_length=256)]
    arguments: Annotated[str, Field(max_length=MAX_CALL_CHARACTERS)]
    output: Annotated[str, Field(max_length=MAX_CALL_CHARACTERS)] | None = None
    error: dict[str, Any] | None = None
    approval_request_id: ItemId | None = None
    id: ItemId | None = None
    status: Literal["in_progress", "completed", "incomplete", "calling", "failed"] | None = None


class McpApprovalRequestItem(Part):
    type: Literal["mcp_approval_request"]
    server_label: Annotated[str, Field(max_length=64)]
    name: Annotated[str, Field(max_length=256)]
    arguments: Annotated[str, Field(max_length=MAX_CALL_CHARACTERS)]
    id: ItemId


class McpApprovalItem(Part):
    """Whether the user approves a call."""

    type: Literal["mcp_approval_response"]
    approval_request_id: ItemId
    approve: bool
    reason: Annotated[str, Field(max_length=MAX_PARTS)] | None = None
    id: ItemId | None = None


class CompactionItem(Part):
    """The output of /v1/responses/compact."""

    type: Literal["compaction"]
    encrypted_content: Annotated[str, Field(max_length=MAX_COMPACTION), AfterValidator(_readable)]
    id: ItemId | None = None


def compaction_of(summary: str) -> str:
    """Return the content of a compaction item with that summary."""
    return base64.b64encode(json.dumps({"millm": 1, "summary": summary}).encode()).decode()


def summary_in(content: str) -> str:
    """Return the summary of a compaction item's content. Raises ValueError for anything else."""
    try:
        found = json.loads(base64.b64decode(content, validate=True))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict) or found.get("millm") != 1 or not isinstance(found.get("summary"), str):
        raise ValueError("not a compaction")
    summary: str = found["summary"]
    return summary


class ReferenceItem(Part):
    type: Literal["item_reference"] | None = None
    id: ItemId


InputItem = Annotated[
    Annotated[MessageItem, Tag("~message")]
    | Annotated[FunctionCallItem, Tag("~function_call")]
    | Annotated[FunctionOutputItem, Tag("~function_call_output")]
    | Annotated[ReasoningItem, Tag("~reasoning")]
    | Annotated[FileSearchItem, Tag("~file_search_call")]
    | Annotated[McpListItem, Tag("~mcp_list_tools")]
    | Annotated[McpCallItem, Tag("~mcp_call")]
    | Annotated[McpApprovalRequestItem, Tag("~mcp_approval_request")]
    | Annotated[McpApprovalItem, Tag("~mcp_approval_response")]
    | Annotated[CompactionItem, Tag("~compaction")]
    | Annotated[ReferenceItem, Tag("~item_reference")],
    Discriminator(
        lambda value: _item_kind(value),
        custom_error_type="invalid_item",
        custom_error_message="must have a `type`: one of message, function_call, function_call_output, reasoning, "
        "file_search_call, mcp_list_tools, mcp_call, mcp_approval_request, mcp_approval_response, compaction, "
        "item_reference",
    ),
    BeforeValidator(lambda value: _known_item(value)),
]
McpItem = McpListItem | McpCallItem | McpApprovalRequestItem | McpApprovalItem
OwnItem = (
    MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem | FileSearchItem | McpItem | CompactionItem
)
AnyItem = OwnItem | ReferenceItem
KINDS = (
    "message",
    "function_call",
    "function_call_output",
    "reasoning",
    "file_search_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "compaction",
    "item_reference",
)


def _kind(value: Any) -> Any:
    """Return the item's type; messages and references may omit it."""
    kind = value.get("type")
    return kind if kind is not None else "message" if "role" in value else "item_reference"


def _item_kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"~{_kind(value)}"
    return "~item_reference" if isinstance(value, ReferenceItem) else f"~{getattr(value, 'type', None) or 'message'}"


def _known_item(value: Any) -> Any:
    kind = _kind(value) if isinstance(value, dict) else "message"
    if isinstance(kind, str) and kind not in KINDS:
        raise PydanticCustomError(
            "unsupported_parameter",
            "has the unsupported type `{kind}`. Supported: {known}",
            {"kind": kind[:50], "known": ", ".join(KINDS)},
        )
    return value


def text_of(content: str | list[ItemText | RefusalPart]) -> str:
    """Return the text of the content, one line per part."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
