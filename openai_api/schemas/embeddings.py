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
        None, description="base64: float32 numbers, little endian."
    )
    dimensions: int | None = Field(None, ge=1, description="Keeps the first ones and makes the vector's length 1.")

    def check_together(self) -> None:
        """Refuse empty texts, even if the tokenizer adds tokens of its own."""
        super().check_together()
        if "" in self.input:
            message = f"`input` has an empty string at place {self.input.index('')}. Send some text."
            raise invalid(message, param="input", code="invalid_prompt")
