"""POST /v1/chat/completions: the request."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from typing_extensions import TypedDict

from openai_api.http.errors import invalid
from openai_api.schemas.base import IGNORED, Harmless, ListQuery, RequestSchema
from openai_api.schemas.bodies import ChatCompletionBody
from openai_api.schemas.generation import MAX_TOKENS, SamplingSchema
from openai_api.schemas.messages import MAX_MESSAGES, REASONING_NAMES, AssistantMessage, Message, text_of
from openai_api.schemas.tools import ToolChoice, Tools, ToolUse, tool_use

NO_NUL = r"^[^\x00]*$"
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]


class MetadataRequest(RequestSchema):
    metadata: Metadata | None


class StoredChatBody(ChatCompletionBody):
    metadata: dict[str, str]


class StoredMessageQuery(ListQuery):
    order: Literal["asc", "desc"] = "asc"


class StoredChatQuery(StoredMessageQuery):
    """``metadata``: pairs that the completions must have, written as ``metadata[key]=value``."""

    model: str | None = Field(None, pattern=NO_NUL)
    metadata: dict[Annotated[str, Field(pattern=NO_NUL)], Annotated[str, Field(pattern=NO_NUL)]] = {}

    @classmethod
    def parse(cls, query: Mapping[str, Any]) -> Self:
        """Raises MillmError 400 with ``param``."""
        pairs = {name[9:-1]: value for name, value in query.items() if name.startswith("metadata[") and name[-1] == "]"}
        return super().parse({**{name: query[name] for name in cls.model_fields if name in query}, "metadata": pairs})


class ChatListBody(TypedDict):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ChatDeletedBody(TypedDict):
    id: str
    object: Literal["chat.completion.deleted"]
    deleted: bool


class StoredMessageBody(TypedDict):
    """A message of the request, with an id."""

    id: str
    role: str
    content: str | None
    content_parts: list[dict[str, Any]] | None


class StoredMessageListBody(TypedDict):
    object: Literal["list"]
    data: list[StoredMessageBody]
    first_id: str | None
    last_id: str | None
    has_more: bool


MAX_TOP_LOGPROBS = 20


class TemplateKwargs(BaseModel):
    """Variables of the chat template that a request can set."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    enable_thinking: bool | None = None
    thinking: bool | None = None
    reasoning_effort: Annotated[str, Field(max_length=20)] | None = None


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]


def _read_budget(value: Any) -> Any:
    """Convert true to no limit, and false to no reasoning."""
    return (-1 if value else 0) if isinstance(value, bool) else value


ReasoningBudget = Annotated[
    int | None,
    Field(
        ge=-1,
        le=MAX_TOKENS,
        description="Maximum number of reasoning tokens. -1 or true: no limit. 0 or false: no reasoning.",
    ),
    BeforeValidator(_read_budget),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": -1, "maximum": MAX_TOKENS}, {"type": "boolean"}, {"type": "null"}]}
    ),
]


class ChatRequest(SamplingSchema):
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    chat_template_kwargs: TemplateKwargs | None = None

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: at most one tool call.")
    reasoning_effort: Effort | None = Field(
        None, description="Applied if the model's chat template supports it. none turns reasoning off."
    )
    reasoning_budget: ReasoningBudget = None
    add_generation_prompt: bool | None = Field(None, description="false: do not start an assistant message.")
    continue_final_message: bool | None = Field(
        None, description="Continue the last message, which must be from the assistant."
    )

    store: bool | None = Field(None, description="Store the completion for GET /v1/chat/completions/{id}.")
    metadata: Metadata | None = Field(None, description="Stored with the completion.")

    prediction: Annotated[dict[str, Any] | None, IGNORED] = None
    verbosity: Annotated[Verbosity | None, IGNORED] = None

    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        **SamplingSchema.REFUSED,
        "audio": (),
        "best_of": (1,),
        "chat_template": (),
        "documents": ([],),
        "echo": (False,),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "web_search_options": (),
    }

    REMEDIES: ClassVar[Mapping[str, str]] = {
        "function_call": "Use `tool_choice` instead.",
        "functions": "Use `tools` instead.",
    }

    def check_together(self) -> None:
        super().check_together()
        self.tool_use  # noqa: B018 - raises where tools and choice contradict each other
        if self.continue_final_message:
            self._check_continues()
        if self.top_logprobs and not self.logprobs:
            raise invalid("`top_logprobs` requires `logprobs` to be true.", param="top_logprobs")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise invalid(
                f"`max_tokens` ({self.max_tokens}) and `max_completion_tokens` ({self.max_completion_tokens}) differ. "
                "Send only one of them.",
                param="max_completion_tokens",
            )

    @cached_property
    def tool_use(self) -> ToolUse | None:
        return tool_use(self.tools, self.tool_choice, is_parallel=self.parallel_tool_calls is not False)

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def limit_param(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def _check_continues(self) -> None:
        last = self.messages[-1]
        if not isinstance(last, AssistantMessage) or not text_of(last.content).strip() or last.tool_calls:
            message = (
                "`continue_final_message` requires a last message from the assistant, with text and no tool calls."
            )
            raise invalid(message, param="continue_final_message")
        if self.add_generation_prompt:
            message = "`add_generation_prompt` and `continue_final_message` cannot both be true."
            raise invalid(message, param="add_generation_prompt")

    @classmethod
    def ignored_in(cls, body: Mapping[str, Any]) -> list[str]:
        return super().ignored_in(body) + _ignored_in_messages(body["messages"])


def _ignored_in_messages(messages: list[dict[str, Any]]) -> list[str]:
    known = {"role", "content", "name", "tool_calls", "tool_call_id", "refusal"} | set(REASONING_NAMES)
    names = {name: None for message in messages for name, value in message.items() if value and name not in known}
    return [f"messages[].{name}" for name in names]
