"""Sampling and steering fields, shared by all endpoints that generate text."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from openai_api.http.errors import invalid
from openai_api.keys.record import MAX_INTENSITY
from openai_api.schemas.activations import ActivationsOptionsOrFlag
from openai_api.schemas.base import IGNORED, Harmless, Part, RequestSchema
from openai_api.schemas.structured import StructuredSchema


class SteeredSchema(RequestSchema):
    model: str
    profile: str | None = Field(
        None, min_length=1, max_length=200, description="Steering profile: name, name@version, or null for none."
    )
    steering: dict[str, Any] | None = Field(
        None,
        description="Inline edits in place of a profile: {`features`: [{`sae`, `index`, `strength`, ...}], `vectors`: "
        "[{`layer`, `values`, ...}]}; `strength` of a feature or registered vector may be `auto`, the calibrated one.",
    )
    steering_intensity: float | None = Field(
        None, ge=0, le=MAX_INTENSITY, description="Factor for all strengths: 1 is unchanged, 0 turns steering off."
    )
    user: str | None = Field(None, max_length=512, description="Stored in the request log.")

    @property
    def names_profile(self) -> bool:
        """Whether the body contains ``profile``, including null."""
        return "profile" in self.model_fields_set

    def parameters(self) -> dict[str, Any]:
        """Like :meth:`RequestSchema.parameters`, with the numbers of vectors as base64, or only their hash."""
        found = super().parameters()
        return found if self.steering is None else {**found, "steering": logged_steering(self.steering)}


MAX_LOGGED = 64 * 1024  # characters of all vectors
HASH = "sha256:"


def logged_steering(steering: dict[str, Any]) -> dict[str, Any]:
    """Return inline edits as the request log stores them. Large vectors are replaced by a hash."""
    vectors = steering.get("vectors")
    if not isinstance(vectors, list):
        return steering
    packed = [_packed(vector) for vector in vectors]
    texts = [
        vector["values"] for vector in packed if isinstance(vector, dict) and isinstance(vector.get("values"), str)
    ]
    if sum(map(len, texts)) > MAX_LOGGED:
        packed = [_hashed(vector) for vector in packed]
    return {**steering, "vectors": packed}


def _packed(vector: Any) -> Any:
    """Return the vector with its list of numbers as base64; anything else as it is."""
    values = vector.get("values") if isinstance(vector, dict) else None
    if not isinstance(values, list):
        return vector
    try:
        data = struct.pack(f"<{len(values)}f", *values)
    except (struct.error, OverflowError):  # the request is refused
        return {**vector, "values": f"{len(values)} values"}
    return {**vector, "values": base64.b64encode(data).decode()}


def _hashed(vector: Any) -> Any:
    if not isinstance(vector, dict) or not isinstance(vector.get("values"), str):
        return vector
    digest = hashlib.sha256(vector["values"].encode("utf-8", "surrogatepass")).hexdigest()
    return {**vector, "values": HASH + digest}


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
    """Sampling and steering fields whose names all endpoints share."""

    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1, description="-1 or 0: off.")
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, gt=0, le=1, description="1: off.")
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10, description="1: off.")
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
        description="Share cached prompt prefixes only with requests that have the same salt.",
    )


class UnsteeredSchema(RequestSchema):
    user: str | None = Field(None, max_length=512, description="Stored in the request log.")

    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        "profile": (),
        "steering": (),
        "steering_intensity": (),
        "truncate_prompt_tokens": (),
    }
    REMEDIES: ClassVar[Mapping[str, str]] = {
        "profile": "This endpoint does not support steering.",
        "truncate_prompt_tokens": "Shorten or split the texts.",
    }


MAX_CHOICES = 128
MAX_PROMPT_LOGPROBS = 20


class StreamOptions(Part):
    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, IGNORED] = None


class SamplingSchema(DrawingSchema, StructuredSchema):
    """Fields of chat and text completions."""

    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_PROMPT_LOGPROBS)
    return_activations: ActivationsOptionsOrFlag = Field(
        None,
        description="Return feature activations of an SAE in `millm.activations`. true: the strongest ten per token.",
    )

    store: Annotated[bool | None, IGNORED] = None
    metadata: Annotated[dict[str, Any] | None, IGNORED] = None
    service_tier: Annotated[str | None, IGNORED] = None
    prompt_cache_key: Annotated[str | None, IGNORED] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, IGNORED] = None
    prompt_cache_retention: Annotated[str | None, IGNORED] = None
    safety_identifier: Annotated[str | None, IGNORED] = None

    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        "early_stopping": (False,),
        "length_penalty": (1, 1.0),
        "mirostat": (0,),
        "moderation": (),
        "truncate_prompt_tokens": (),
        "use_beam_search": (False,),
    }

    def check_together(self) -> None:
        super().check_together()
        if self.include_usage and not self.stream:
            raise invalid("`stream_options.include_usage` requires `stream` to be true.", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise invalid("`prompt_logprobs` cannot be combined with `stream`.", param="prompt_logprobs")

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)
