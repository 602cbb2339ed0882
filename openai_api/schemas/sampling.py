"""Fields that chat and text completions share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from openai_api.errors import invalid
from openai_api.schemas.base import IGNORED, Harmless, Part
from openai_api.schemas.drawing import DrawingSchema
from openai_api.schemas.reading import WishOrFlag
from openai_api.schemas.structured import StructuredSchema

MAX_CHOICES = 128
MAX_PROMPT_LOGPROBS = 20


class StreamOptions(Part):
    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, IGNORED] = None


class SamplingSchema(DrawingSchema, StructuredSchema):
    """What chat and text completions have in common besides."""

    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_PROMPT_LOGPROBS)
    return_activations: WishOrFlag = Field(
        None, description="Features of an SAE at the tokens, under `millm.activations`; true: the strongest ten."
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
            raise invalid("“stream_options.include_usage” needs “stream”: true.", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise invalid("“prompt_logprobs” cannot be streamed.", param="prompt_logprobs")

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)
