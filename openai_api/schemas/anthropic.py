"""Request and response of POST /v1/messages, Anthropic's API. endpoints/anthropic_messages.py converts them to chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from openai_api.http.errors import invalid
from openai_api.keys.record import MAX_INTENSITY
from openai_api.schemas.base import IGNORED, Harmless, Part, RequestSchema
from openai_api.schemas.bodies import MillmBody
from openai_api.schemas.generation import MAX_STOPS, MAX_TOKENS, StopString
from openai_api.schemas.messages import MAX_MESSAGES, MAX_PARTS
from openai_api.schemas.tools import MAX_TOOLS

Id = Annotated[str, Field(min_length=1, max_length=256)]


class TextBlock(Part):
    type: Literal["text"]
    text: str


class ThinkingBlock(Part):
    type: Literal["thinking"]
    thinking: str


class ToolUseBlock(Part):
    type: Literal["tool_use"]
    id: Id
    name: Id
    input: dict[str, Any]


def _only(*kinds: str) -> BeforeValidator:
    """Return a validator that refuses blocks of other types by name."""

    def check(value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            raise PydanticCustomError(
                "unsupported_parameter",
                "has the unsupported type `{kind}`. Supported here: {kinds}",
                {"kind": kind[:50], "kinds": ", ".join(kinds)},
            )
        return value

    return BeforeValidator(check)


def _as_blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Texts = Annotated[list[Annotated[TextBlock, _only("text")]], Field(max_length=MAX_PARTS), BeforeValidator(_as_blocks)]


class ToolResultBlock(Part):
    type: Literal["tool_result"]
    tool_use_id: Id
    content: Texts | None = None
    is_error: bool | None = None


UserBlock = Annotated[TextBlock | ToolResultBlock, Field(discriminator="type"), _only("text", "tool_result")]
AssistantBlock = Annotated[
    TextBlock | ThinkingBlock | ToolUseBlock,
    Field(discriminator="type"),
    _only("text", "thinking", "tool_use"),
]


class UserTurn(Part):
    role: Literal["user"]
    content: Annotated[list[UserBlock], Field(min_length=1, max_length=MAX_PARTS), BeforeValidator(_as_blocks)]


class AssistantTurn(Part):
    role: Literal["assistant"]
    content: Annotated[list[AssistantBlock], Field(min_length=1, max_length=MAX_PARTS), BeforeValidator(_as_blocks)]


class SystemTurn(Part):
    role: Literal["system"]
    content: Texts


Turn = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]


class CustomTool(Part):
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


def _only_custom(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in {None, "custom"}:
        raise PydanticCustomError(
            "unsupported_parameter", "has the unsupported type `{kind}`. Supported: custom", {"kind": str(kind)[:50]}
        )
    return value


class Choice(Part):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Part):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)


class OutputFormat(Part):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Part):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(Part):
    user_id: str | None = Field(None, max_length=512)


class CountTokensRequest(RequestSchema):
    """The fields of a request that determine its prompt."""

    model: str
    messages: list[Turn] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Texts | None = None
    thinking: Thinking | None = None
    tools: list[Annotated[CustomTool, BeforeValidator(_only_custom)]] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Choice | None = None
    output_config: OutputConfig | None = None
    profile: str | None = Field(None, min_length=1, max_length=200, description="As for chat completions.")
    steering: dict[str, Any] | None = Field(None, description="As for chat completions.")
    steering_intensity: float | None = Field(None, ge=0, le=MAX_INTENSITY, description="As for chat completions.")

    cache_control: Annotated[dict[str, Any] | None, IGNORED] = None
    context_management: Annotated[dict[str, Any] | None, IGNORED] = None
    diagnostics: Annotated[dict[str, Any] | None, IGNORED] = None
    inference_geo: Annotated[str | None, IGNORED] = None
    service_tier: Annotated[str | None, IGNORED] = None
    speed: Annotated[str | None, IGNORED] = None

    TEXTS: ClassVar[tuple[str, ...]] = ("system", "messages", "tools")
    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        "container": (),
        "max_completion_tokens": (),
        "mcp_servers": ([],),
        "reasoning_budget": (),
        "reasoning_effort": (),
        "response_format": ({"type": "text"},),
        "stop": ([],),
    }
    REMEDIES: ClassVar[Mapping[str, str]] = {
        "max_completion_tokens": "Send `max_tokens` instead.",
        "reasoning_budget": "Send `thinking.budget_tokens` instead.",
        "reasoning_effort": "Send `output_config.effort` instead.",
        "response_format": "Send `output_config.format` instead.",
        "stop": "Send `stop_sequences` instead.",
    }

    def check_together(self) -> None:
        super().check_together()
        thinking = self.thinking
        if thinking is not None and (thinking.type == "enabled") != (thinking.budget_tokens is not None):
            raise invalid(
                "`thinking.budget_tokens` is required if `thinking.type` is `enabled`, and not allowed otherwise.",
                param="thinking.budget_tokens",
            )
        choice = self.tool_choice
        if choice is not None and (choice.type == "tool") != (choice.name is not None):
            message = "`tool_choice.name` is required if `tool_choice.type` is `tool`, and not allowed otherwise."
            raise invalid(message, param="tool_choice.name")


class MessagesRequest(CountTokensRequest):
    max_tokens: int = Field(ge=1, le=MAX_TOKENS)
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1)
    stop_sequences: list[StopString] | None = Field(None, max_length=MAX_STOPS)
    metadata: Metadata | None = None

    def check_together(self) -> None:
        super().check_together()
        budget = self.thinking.budget_tokens if self.thinking else None
        if budget is not None and budget >= self.max_tokens:
            raise invalid(
                f"`thinking.budget_tokens` must be less than `max_tokens` ({self.max_tokens}), got {budget}.",
                param="thinking.budget_tokens",
            )


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class CacheCreationBody(TypedDict):
    """Always zero: this server does not bill cache writes."""

    ephemeral_1h_input_tokens: int
    ephemeral_5m_input_tokens: int


class OutputTokensDetailsBody(TypedDict):
    thinking_tokens: int


class DeltaUsageBody(TypedDict):
    """``input_tokens`` excludes tokens that were read from the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetailsBody
    server_tool_use: None


class MessageUsageBody(DeltaUsageBody):
    cache_creation: CacheCreationBody
    inference_geo: None
    service_tier: Literal["standard"]
    speed: Literal["standard"]


class TextBlockBody(TypedDict):
    type: Literal["text"]
    text: str
    citations: None


class ThinkingBlockBody(TypedDict):
    """``signature`` is empty: the server does not verify thinking that clients send back."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class CallerBody(TypedDict):
    type: Literal["direct"]


class ToolUseBlockBody(TypedDict):
    """``input`` is {"raw": text} if the model did not write a JSON object."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: CallerBody


Block = TextBlockBody | ThinkingBlockBody | ToolUseBlockBody


class AnthropicMessageBody(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None
    container: None
    diagnostics: None
    usage: MessageUsageBody
    millm: NotRequired[MillmBody]


class MessageStopDelta(TypedDict):
    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None
    container: None


class MessageEventBody(TypedDict):
    """One event of a stream. Its ``type`` determines which fields are present."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
    ]
    message: NotRequired[AnthropicMessageBody]
    index: NotRequired[int]
    content_block: NotRequired[Block]
    delta: NotRequired[dict[str, str] | MessageStopDelta]
    usage: NotRequired[DeltaUsageBody]
    millm: NotRequired[MillmBody]


class AnthropicModelBody(TypedDict):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    deprecated_at: None
    retires_at: None
    lifecycle: Literal["active"]
    line: None
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: None


class AnthropicModelListBody(TypedDict):
    data: list[AnthropicModelBody]
    has_more: bool
    first_id: str | None
    last_id: str | None


class TokenCountBody(TypedDict):
    input_tokens: int


class AnthropicErrorDetail(TypedDict):
    type: str
    message: str
    param: str | None
    code: str | None


class AnthropicErrorBody(TypedDict):
    type: Literal["error"]
    error: AnthropicErrorDetail
