"""POST /v1/embeddings: the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from openai_api.schemas.base import Harmless, RequestSchema
from openai_api.schemas.prompt_forms import Prompts


class EmbeddingsRequest(RequestSchema):
    model: str
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: float32 numbers, little endian."
    )
    dimensions: int | None = Field(None, ge=1, description="Keeps the first ones and makes the vector's length 1.")
    user: str | None = Field(None, max_length=512, description="Kept in the request log.")

    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        "profile": (),
        "steering": (),
        "steering_intensity": (),
        "truncate_prompt_tokens": (),
    }
    REMEDIES: ClassVar[Mapping[str, str]] = {"profile": "Embeddings are not steered: leave it out."}
