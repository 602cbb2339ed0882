"""/v1/vector_stores and what is in them: requests."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, PlainValidator, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from openai_api.http.errors import invalid
from openai_api.schemas.base import IGNORED, NO_NUL, TAG, ListQuery, Metadata, MetadataKey, Part, RequestSchema

MAX_PARTS = 100  # of a whole condition
MAX_DEPTH = 10
MAX_WHOLE = 2**53  # beyond it numbers of JSON readers differ

MAX_TEXT = 512
EMBEDDING_MODEL = "Extension of miLLM: a registered embedding model."


def _attribute(value: Any) -> bool | float | str:
    """Return one message, where a union would have one for each of its branches."""
    if isinstance(value, str) and len(value) <= MAX_TEXT and "\0" not in value:
        return value
    if isinstance(value, int) and abs(value) <= MAX_WHOLE:  # includes booleans
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    message = f"must be a boolean, a number, or a string of at most {MAX_TEXT} characters without NUL"
    raise PydanticCustomError("invalid_attribute", message)


AttributeValue = Annotated[
    bool | float | str,
    PlainValidator(_attribute),
    WithJsonSchema({"anyOf": [{"type": "string", "maxLength": MAX_TEXT}, {"type": "number"}, {"type": "boolean"}]}),
]
Attributes = Annotated[
    dict[MetadataKey, AttributeValue],
    Field(
        max_length=16,
        description="At most 16 pairs. Values are strings of at most 512 characters, numbers or booleans.",
    ),
]


class ComparisonSchema(Part):
    type: Literal["eq", "ne", "gt", "gte", "lt", "lte"]
    key: MetadataKey
    value: AttributeValue


class MembershipSchema(Part):
    type: Literal["in", "nin"]
    key: MetadataKey
    value: list[AttributeValue] = Field(max_length=MAX_PARTS)


class CompoundSchema(Part):
    type: Literal["and", "or"]
    filters: list[FilterSchema] = Field(min_length=1, max_length=MAX_PARTS)


def _kind(value: Any) -> str:
    name = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if name in ("and", "or"):
        return f"{TAG}compound"
    return f"{TAG}membership" if name in ("in", "nin") else f"{TAG}comparison"


FilterSchema = Annotated[
    Annotated[ComparisonSchema, Tag(f"{TAG}comparison")]
    | Annotated[MembershipSchema, Tag(f"{TAG}membership")]
    | Annotated[CompoundSchema, Tag(f"{TAG}compound")],
    Discriminator(_kind),
]
CompoundSchema.model_rebuild()


def size_of(condition: ComparisonSchema | MembershipSchema | CompoundSchema, depth: int = 1) -> tuple[int, int]:
    """Return the number of comparisons and compounds in the condition, and its depth."""
    if not isinstance(condition, CompoundSchema):
        return 1, depth
    parts = [size_of(part, depth + 1) for part in condition.filters]
    return 1 + sum(size for size, _ in parts), max(deep for _, deep in parts)


MAX_FILES = 2_000
FileId = Annotated[str, Field(max_length=64, pattern=NO_NUL)]
FileStatus = Literal["in_progress", "completed", "cancelled", "failed"]


_TEXT_SCHEMA = {"type": "string", "minLength": 1, "maxLength": 100_000}
Queries = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=100_000)]],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [_TEXT_SCHEMA, {"type": "array", "items": _TEXT_SCHEMA, "minItems": 1, "maxItems": 16}]}),
]


class StaticChunking(Part):
    max_chunk_size_tokens: int = Field(ge=100, le=4_096)
    chunk_overlap_tokens: int = Field(ge=0, description="At most half of `max_chunk_size_tokens`.")


class AutoStrategy(Part):
    type: Literal["auto"]


class StaticStrategy(Part):
    type: Literal["static"]
    static: StaticChunking


def _strategy(value: object) -> str:
    name = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"{TAG}static" if name == "static" else f"{TAG}auto"


ChunkingStrategy = Annotated[
    Annotated[AutoStrategy, Tag(f"{TAG}auto")] | Annotated[StaticStrategy, Tag(f"{TAG}static")],
    Discriminator(_strategy),
]


class LastActiveExpiry(Part):
    anchor: Literal["last_active_at"]
    days: int = Field(ge=1, le=365)


class ChunkedSchema(RequestSchema):
    """Requests with a chunking strategy."""

    chunking_strategy: ChunkingStrategy | None = Field(
        None,
        description="`auto`: chunks of 800 tokens that overlap by 400; fewer if the model's context is shorter.",
    )

    def check_together(self) -> None:
        check_chunking(self.chunking_strategy, "chunking_strategy")


class StoreRequest(ChunkedSchema):
    name: str | None = Field(None, max_length=256, pattern=NO_NUL)
    description: str | None = Field(None, max_length=512, pattern=NO_NUL)
    file_ids: list[FileId] | None = Field(None, max_length=MAX_FILES)
    expires_after: LastActiveExpiry | None = None
    metadata: Metadata | None = None
    embedding_model: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        pattern=NO_NUL,
        description=EMBEDDING_MODEL,
    )


class StoreChange(RequestSchema):
    name: str | None = Field(None, max_length=256, pattern=NO_NUL)
    expires_after: LastActiveExpiry | None = None
    metadata: Metadata | None = None


class AttachRequest(ChunkedSchema):
    file_id: FileId
    attributes: Attributes | None = None


class AttributeChange(RequestSchema):
    attributes: Attributes | None


class BatchedFile(Part):
    file_id: FileId
    attributes: Attributes | None = None
    chunking_strategy: ChunkingStrategy | None = None


class FileBatchRequest(ChunkedSchema):
    file_ids: list[FileId] | None = Field(None, min_length=1, max_length=MAX_FILES)
    files: list[BatchedFile] | None = Field(None, min_length=1, max_length=MAX_FILES)
    attributes: Attributes | None = None

    def check_together(self) -> None:
        super().check_together()
        if (self.file_ids is None) == (self.files is None):
            raise invalid("Send either `file_ids` or `files`.", param="files")
        if self.files is not None and (self.attributes is not None or self.chunking_strategy is not None):
            raise invalid(
                "`attributes` and `chunking_strategy` cannot be combined with `files`. Set them for each file.",
                param="attributes",
            )
        for place, file in enumerate(self.files or ()):
            check_chunking(file.chunking_strategy, f"files[{place}].chunking_strategy")


class RankingOptions(Part):
    ranker: Literal["none", "auto"] | None = Field(None, description="Both rank by cosine similarity.")
    score_threshold: float | None = Field(None, ge=0, le=1)


class SearchRequest(RequestSchema):
    query: Queries = Field(
        min_length=1, max_length=16, description="With several queries, a chunk's score is its best one."
    )
    filters: FilterSchema | None = None
    max_num_results: int | None = Field(None, ge=1, le=50, description="Default: 10.")
    ranking_options: RankingOptions | None = None
    embedding_model: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        pattern=NO_NUL,
        description=EMBEDDING_MODEL,
    )
    rewrite_query: Annotated[bool | None, IGNORED] = None

    def check_together(self) -> None:
        if self.filters is not None:
            size, depth = size_of(self.filters)
            if size > MAX_PARTS or depth > MAX_DEPTH:
                raise invalid(
                    f"`filters` must have at most {MAX_PARTS} conditions on at most {MAX_DEPTH} levels.",
                    param="filters",
                )

    def parameters(self) -> dict[str, Any]:
        """Return the parameters for the log, without the query: that is logged as a prompt."""
        return {name: value for name, value in super().parameters().items() if name != "query"}


class StoreFileQuery(ListQuery):
    filter: FileStatus | None = None


def check_chunking(strategy: AutoStrategy | StaticStrategy | None, param: str) -> None:
    if isinstance(strategy, StaticStrategy):
        size = strategy.static
        overlap = f"{param}.static.chunk_overlap_tokens"
        if 2 * size.chunk_overlap_tokens > size.max_chunk_size_tokens:
            raise invalid(
                f"`{overlap}` must be at most half of `max_chunk_size_tokens`, got {size.chunk_overlap_tokens}.",
                param=overlap,
            )
