"""How the next token is drawn and what steers the model: fields of every endpoint that generates text."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from openai_api.schemas.steered import SteeredSchema

MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 64
MAX_BAD_WORD_LENGTH = 200  # characters
MAX_ALLOWED_TOKENS = 100_000
MAX_STOPS = 16
MAX_CACHE_SALT = 512  # characters
MAX_STOP_LENGTH = 1024  # characters
INT64_MAX = 2**63 - 1
MAX_TOKENS = 10**9

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_LENGTH)]
TokenId = Annotated[int, Field(ge=0)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class DrawingSchema(SteeredSchema):
    """Sampling and steering, under the names that all endpoints share."""

    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1, description="-1 and 0 turn it off.")
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, gt=0, le=1, description="1 turns it off.")
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10, description="1 turns it off.")
    logit_bias: (
        dict[
            Annotated[str, Field(pattern=r"^[0-9]{1,9}$", max_length=9)],
            Annotated[float, Field(ge=-100, le=100)],
        ]
        | None
    ) = Field(None, max_length=MAX_LOGIT_BIAS)
    seed: int | None = Field(None, ge=-INT64_MAX - 1, le=INT64_MAX)
    stop: Annotated[list[StopString] | None, Field(max_length=MAX_STOPS), BeforeValidator(_as_list)] = None
    stop_token_ids: list[TokenId] | None = Field(None, max_length=64)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    bad_words: list[BadWord] | None = Field(None, max_length=MAX_BAD_WORDS)
    allowed_token_ids: list[TokenId] | None = Field(None, min_length=1, max_length=MAX_ALLOWED_TOKENS)
    skip_special_tokens: bool | None = None
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_CACHE_SALT,
        description="Share cached beginnings of prompts only with requests that have the same salt.",
    )
