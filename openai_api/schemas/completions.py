"""POST /v1/completions: the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from openai_api.http.errors import invalid
from openai_api.schemas.base import Harmless
from openai_api.schemas.generation import MAX_TOKENS, SamplingSchema
from openai_api.schemas.prompts import MAX_PROMPTS, Prompts

MAX_LOGPROBS = 5
MAX_BEST_OF = 16


class CompletionRequest(SamplingSchema):
    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=MAX_BEST_OF)

    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        **SamplingSchema.REFUSED,
        "max_completion_tokens": (),
        "messages": (),
        "reasoning_budget": (),
        "suffix": ("",),
        "tools": ([],),
    }
    REMEDIES: ClassVar[Mapping[str, str]] = {
        "max_completion_tokens": "Send `max_tokens` instead.",
        "messages": "Send them to /v1/chat/completions.",
        "reasoning_budget": "Send it to /v1/chat/completions.",
        "tools": "Send them to /v1/chat/completions.",
    }

    def check_together(self) -> None:
        super().check_together()
        if self.max_tokens == 0 and not self.echo:
            raise invalid("“max_tokens” may be 0 only with “echo”: true.", param="max_tokens")
        if len(self.prompt) * self.num_candidates > MAX_PROMPTS:
            raise invalid(
                f"{len(self.prompt)} prompts with {self.num_candidates} completions each are more than {MAX_PROMPTS}.",
                param="prompt",
            )
        if self.best_of is not None and self.best_of < self.num_choices:
            raise invalid(f"“best_of” is {self.best_of}, less than “n”, which is {self.num_choices}.", param="best_of")
        if self.stream and self.num_candidates > self.num_choices:
            raise invalid("“best_of” cannot be streamed: the best is known at the end only.", param="best_of")
        if self.return_activations is not None and self.num_candidates > self.num_choices:
            raise invalid("“return_activations” goes with “n”, not with “best_of”.", param="return_activations")

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def num_candidates(self) -> int:
        return self.best_of or self.num_choices
