"""What /v1/messages answers, in Anthropic's form."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from openai_api.schemas.bodies import MillmBody

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class CacheCreationBody(TypedDict):
    """Nothing is paid for here, so nothing counts as written."""

    ephemeral_1h_input_tokens: int
    ephemeral_5m_input_tokens: int


class OutputTokensDetailsBody(TypedDict):
    thinking_tokens: int


class DeltaUsageBody(TypedDict):
    """``input_tokens`` without those that were read from the cache."""

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
    """``signature`` is empty: nothing here checks thoughts that come back."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class CallerBody(TypedDict):
    type: Literal["direct"]


class ToolUseBlockBody(TypedDict):
    """``input`` is {"raw": text} where the model wrote no JSON object."""

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
    """One event of a stream; which of the fields are there depends on its ``type``."""

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
