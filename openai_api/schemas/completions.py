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
    suffix: str | None = None
    max_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=MAX_BEST_OF)

    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        **SamplingSchema.REFUSED,
        "max_completion_tokens": (),
        "messages": (),
        "reasoning_budget": (),
        "tools": ([],),
    }
    REMEDIES: ClassVar[Mapping[str, str]] = {
        "max_completion_tokens": "Use `max_tokens` instead.",
        "messages": "Use /v1/chat/completions.",
        "reasoning_budget": "Use /v1/chat/completions.",
        "tools": "Use /v1/chat/completions.",
    }

    def check_together(self) -> None:
        super().check_together()
        if self.suffix and not all(isinstance(prompt, str) for prompt in self.prompt):
            raise invalid("`prompt` must be text, not token ids, if there is a `suffix`.", param="prompt")
        if self.max_tokens == 0 and not self.echo:
            raise invalid("`max_tokens` can only be 0 if `echo` is true.", param="max_tokens")
        if len(self.prompt) * self.num_candidates > MAX_PROMPTS:
            raise invalid(
                f"A request can have at most {MAX_PROMPTS} completions, got {len(self.prompt) * self.num_candidates}.",
                param="prompt",
            )
        if self.best_of is not None and self.best_of < self.num_choices:
            raise invalid(f"`best_of` must be at least `n` ({self.num_choices}), got {self.best_of}.", param="best_of")
        if self.stream and self.num_candidates > self.num_choices:
            raise invalid("`best_of` cannot be combined with `stream`.", param="best_of")
        if self.return_activations is not None and self.num_candidates > self.num_choices:
            raise invalid(
                "`return_activations` cannot be combined with `best_of`. Use `n`.", param="return_activations"
            )

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def num_candidates(self) -> int:
        return self.best_of or self.num_choices
