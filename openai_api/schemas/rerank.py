"""POST /v1/rerank (Jina's, Cohere's and vLLM's shape) and POST /v1/score (vLLM's): requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from openai_api.http.errors import invalid
from openai_api.schemas.base import Harmless
from openai_api.schemas.bodies import EmbeddingUsageBody
from openai_api.schemas.generation import UnsteeredSchema

MAX_DOCUMENTS = 2048
_TEXT_OBJECT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def _document(value: Any) -> Any:
    """Return the text of a document, which Jina and Cohere allow to be a text or an object with ``text``."""
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise PydanticCustomError("invalid_prompt", "must be a string or an object with `text`")
    return text


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Document = Annotated[str, BeforeValidator(_document), WithJsonSchema({"anyOf": [{"type": "string"}, _TEXT_OBJECT]})]
Texts = Annotated[
    list[str],
    Field(min_length=1, max_length=MAX_DOCUMENTS),
    BeforeValidator(_texts),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]


class RerankRequest(UnsteeredSchema):
    model: str
    query: str
    documents: list[Document] = Field(min_length=1, max_length=MAX_DOCUMENTS)
    top_n: int | None = Field(None, ge=1, description="Number of best documents to return. Default: all.")
    return_documents: bool | None = Field(None, description="Include the documents in the results. Default: true.")

    TEXTS: ClassVar[tuple[str, ...]] = ("query", "documents")
    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        **UnsteeredSchema.REFUSED,
        "max_chunks_per_doc": (),
        "max_tokens_per_doc": (),
        "rank_fields": (["text"],),
    }


class ScoreRequest(UnsteeredSchema):
    """One text compared with one or many, or two lists of the same length compared in pairs."""

    model: str
    text_1: Texts
    text_2: Texts

    TEXTS: ClassVar[tuple[str, ...]] = ("text_1", "text_2")

    def check_together(self) -> None:
        super().check_together()
        if len(self.text_1) not in {1, len(self.text_2)}:
            raise invalid(
                f"`text_1` must have one text or as many as `text_2` ({len(self.text_2)}), got {len(self.text_1)}.",
                param="text_1",
            )

    @property
    def pairs(self) -> list[tuple[str, str]]:
        firsts = self.text_1 * len(self.text_2) if len(self.text_1) == 1 else self.text_1
        return list(zip(firsts, self.text_2, strict=True))


class DocumentBody(TypedDict):
    text: str


class RerankResultBody(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[DocumentBody]


class RerankBody(TypedDict):
    """Results, best first. ``index`` is the document's index in the request."""

    id: str
    model: str
    results: list[RerankResultBody]
    usage: EmbeddingUsageBody


class ScoreItemBody(TypedDict):
    index: int
    object: Literal["score"]
    score: float


class ScoreBody(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreItemBody]
    usage: EmbeddingUsageBody
