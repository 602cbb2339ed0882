"""POST /v1/completions: the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from openai_api.errors import invalid
from openai_api.schemas.base import Harmless
from openai_api.schemas.sampling import MAX_CHOICES, MAX_TOKENS, SamplingSchema

MAX_PROMPTS = 2048
MAX_LOGPROBS = 5

Prompt = str | list[int]  # text, or token ids
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
    ]
}


def _problem(message: str) -> PydanticCustomError:
    return PydanticCustomError("invalid_prompt", message)


def _prompts(value: Any) -> list[Prompt]:
    """All four forms of ``prompt`` as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise _problem("the prompt must be a string, strings, token ids or lists of token ids")
    if _are_ids(value):
        return [value]
    if len(value) > MAX_PROMPTS:
        raise _problem(f"a request takes at most {MAX_PROMPTS} prompts")
    if all(isinstance(item, str) for item in value) or all(isinstance(item, list) and _are_ids(item) for item in value):
        return value
    raise _problem("the prompt must be a string, strings, token ids or lists of token ids, not a mixture")


def _are_ids(items: list[Any]) -> bool:
    """Whether these are token ids of some vocabulary; which one is checked when the model is known."""
    return bool(items) and all(type(item) is int and 0 <= item < 2**31 for item in items)


class CompletionRequest(SamplingSchema):
    prompt: Annotated[list[Prompt], BeforeValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]
    max_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)

    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        **SamplingSchema.REFUSED,
        "suffix": ("",),
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
        if self.num_candidates < self.num_choices:
            raise invalid(f"“best_of” is {self.best_of}, less than “n”, which is {self.num_choices}.", param="best_of")
        if self.stream and self.num_candidates > self.num_choices:
            raise invalid("“best_of” cannot be streamed: the best is known at the end only.", param="best_of")

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def num_candidates(self) -> int:
        return self.best_of or self.num_choices
