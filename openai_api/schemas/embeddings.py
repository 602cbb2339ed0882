"""POST /v1/embeddings: the request."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openai_api.http.errors import invalid
from openai_api.schemas.generation import UnsteeredSchema
from openai_api.schemas.prompts import Prompts


class EmbeddingsRequest(UnsteeredSchema):
    model: str
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: little-endian float32 values."
    )
    dimensions: int | None = Field(None, ge=1, description="Truncate the vectors to this length and normalise them.")

    def check_together(self) -> None:
        """Refuse empty texts, even if the tokenizer adds tokens of its own."""
        super().check_together()
        if "" in self.input:
            message = f"`input[{self.input.index('')}]` must not be empty."
            raise invalid(message, param="input", code="invalid_prompt")
