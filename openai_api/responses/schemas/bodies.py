"""Response bodies. The OpenAPI document is generated from them.

Items and events are open objects there. Tests check them against the types of OpenAI's client.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from openai_api.schemas.bodies import MillmBody

Item = dict[str, Any]
Event = dict[str, Any]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsageBody(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseErrorBody(TypedDict):
    """``code`` is one of OpenAI's codes, ``millm_code`` the code of the server's HTTP errors."""

    code: str
    message: str
    param: str | None
    type: str
    millm_code: str | None


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class ConversationReference(TypedDict):
    id: str


class ReasoningBody(TypedDict):
    effort: str | None
    summary: str | None


class TextBody(TypedDict):
    format: dict[str, Any]
    verbosity: str


class ResponseBody(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    background: bool
    conversation: ConversationReference | None
    error: ResponseErrorBody | None
    frequency_penalty: float
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningBody
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: TextBody
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsageBody | None
    user: str | None
    millm: NotRequired[MillmBody]


class ResponseDeletedBody(TypedDict):
    id: str
    object: Literal["response"]
    deleted: bool


class InputTokensBody(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


class CompactionBody(TypedDict):
    """``output``: the user's messages, then one item that replaces the rest of the conversation in later inputs."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Item]
    usage: ResponseUsageBody


class ItemListBody(TypedDict):
    """``first_id`` and ``last_id`` are empty if there are no items."""

    object: Literal["list"]
    data: list[Item]
    first_id: str
    last_id: str
    has_more: bool


class ConversationBody(TypedDict):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ConversationDeletedBody(TypedDict):
    id: str
    object: Literal["conversation.deleted"]
    deleted: bool
