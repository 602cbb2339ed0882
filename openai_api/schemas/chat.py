"""POST /v1/chat/completions: the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from openai_api.errors import invalid
from openai_api.schemas.base import IGNORED, Harmless
from openai_api.schemas.messages import MAX_MESSAGES, Message
from openai_api.schemas.sampling import MAX_TOKENS, SamplingSchema

MAX_TOP_LOGPROBS = 20


class TemplateKwargs(BaseModel):
    """The chat template's switches that a request may set."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    enable_thinking: bool | None = None
    thinking: bool | None = None
    reasoning_effort: Annotated[str, Field(max_length=20)] | None = None


class ChatRequest(SamplingSchema):
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    chat_template_kwargs: TemplateKwargs | None = None

    parallel_tool_calls: Annotated[bool | None, IGNORED] = None
    prediction: Annotated[dict[str, Any] | None, IGNORED] = None
    reasoning_effort: Annotated[str | None, IGNORED] = None
    verbosity: Annotated[str | None, IGNORED] = None

    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        **SamplingSchema.REFUSED,
        "add_generation_prompt": (True,),
        "audio": (),
        "best_of": (1,),
        "chat_template": (),
        "continue_final_message": (False,),
        "documents": ([],),
        "echo": (False,),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "tool_choice": ("none",),
        "tools": ([],),
        "web_search_options": (),
    }

    def check_together(self) -> None:
        super().check_together()
        if self.top_logprobs and not self.logprobs:
            raise invalid("“top_logprobs” needs “logprobs”: true.", param="top_logprobs")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise invalid(
                f"“max_tokens” is {self.max_tokens} and “max_completion_tokens” is {self.max_completion_tokens}. "
                "Send one of them.",
                param="max_completion_tokens",
            )

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def limit_param(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @classmethod
    def ignored_in(cls, body: Mapping[str, Any]) -> list[str]:
        return super().ignored_in(body) + _ignored_in_messages(body["messages"])


def _ignored_in_messages(messages: list[dict[str, Any]]) -> list[str]:
    known = {"role", "content", "name", "tool_calls", "tool_call_id", "refusal"}
    names = {name: None for message in messages for name, value in message.items() if value and name not in known}
    return [f"messages[].{name}" for name in names]
