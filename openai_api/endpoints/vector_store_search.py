"""Search a vector store: embed the query and find its nearest neighbours."""

from __future__ import annotations

import asyncio
from typing import Protocol

from django.conf import settings
from django.http.response import HttpResponseBase

from core.database import in_database, in_thread
from inference.client import Usage
from inference.text.model_text import PromptTooLongError
from openai_api.backend import get_backend
from openai_api.endpoints.vector_stores import choose_embedder, embedder
from openai_api.generation.target import find_model, ready_model
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid, timed_out
from openai_api.schemas.vector_store_bodies import SearchBody, SearchHitBody
from openai_api.schemas.vector_stores import (
    ComparisonSchema,
    CompoundSchema,
    MembershipSchema,
    RankingOptions,
    SearchRequest,
)
from storage.embedder import MISMATCH
from storage.errors import StorageError
from storage.models import VectorStore
from storage.vector_search import Comparison, Compound, Filter, Hit, Neighbours, nearest
from storage.vector_stores import usable_store

DEFAULT_RESULTS = 10


async def search_vector_store(call: Call, store_id: str) -> HttpResponseBase:
    request = call.read(SearchRequest)
    call.prompt = request.query[0] if len(request.query) == 1 else request.query
    store = await in_database(usable_store, store_id, owner_id=call.owner_id)
    name = choose_embedder(call, store, request.embedding_model)
    vectors = await vectors_of(call, name, request.query)
    hits = await in_thread(best_hits, store, vectors, request)
    body: SearchBody = {
        "object": "vector_store.search_results.page",
        "search_query": request.query,
        "data": [hit_body(hit) for hit in hits],
        "has_more": False,
        "next_page": None,
    }
    return json_response(body)


async def vectors_of(call: Call, name: str, texts: list[str]) -> list[list[float]]:
    """Embed the texts. Raises MillmError 400, 503, 504."""
    record, _ = find_model(get_backend().registry(), name)
    model = await ready_model(record, "embedding")
    try:
        counts = [len(model.text.encode(text)) for text in texts]
        if max(counts) > model.max_model_len:
            message = (
                f"`query` must have at most {model.max_model_len} tokens for this embedding model, got {max(counts)}."
            )
            raise invalid(message, param="query", code="context_length_exceeded")
        await call.reserve_tokens(sum(counts))
        call.add_usage(Usage(prompt_tokens=sum(counts)))
        async with asyncio.timeout_at(call.deadline):
            return await embedder().embed(model, texts, priority=call.priority)
    except PromptTooLongError as error:
        raise error.with_param("query") from None
    except TimeoutError:
        raise timed_out(settings.MILLM_REQUEST_TIMEOUT) from None


class SearchOptions(Protocol):
    """Filters, limit and ranking of a search; see :class:`SearchRequest`."""

    @property
    def filters(self) -> ComparisonSchema | MembershipSchema | CompoundSchema | None: ...

    @property
    def max_num_results(self) -> int | None: ...

    @property
    def ranking_options(self) -> RankingOptions | None: ...


def best_hits(store: VectorStore, vectors: list[list[float]], request: SearchOptions) -> list[Hit]:
    """Return the best hits, each chunk once with its best score."""
    limit = request.max_num_results or DEFAULT_RESULTS
    threshold = (request.ranking_options.score_threshold if request.ranking_options else None) or 0.0
    condition = condition_of(request.filters) if request.filters is not None else None
    best: dict[int, Hit] = {}
    for vector in vectors:
        if store.dimensions not in {None, len(vector)}:
            message = f"Vectors of this store have {store.dimensions} dimensions, but the query has {len(vector)}."
            raise StorageError(message, code=MISMATCH, param="embedding_model")
        for hit in nearest(Neighbours(store.pk, len(vector), vector, limit, condition)):
            if hit.score >= threshold and (hit.chunk not in best or hit.score > best[hit.chunk].score):
                best[hit.chunk] = hit
    return sorted(best.values(), key=lambda hit: (-hit.score, hit.chunk))[:limit]


def condition_of(schema: ComparisonSchema | MembershipSchema | CompoundSchema) -> Filter:
    if isinstance(schema, CompoundSchema):
        return Compound(schema.type, tuple(condition_of(part) for part in schema.filters))
    values = tuple(schema.value) if isinstance(schema, MembershipSchema) else (schema.value,)
    return Comparison(schema.type, schema.key, values)


def hit_body(hit: Hit) -> SearchHitBody:
    return {
        "file_id": hit.file_id,
        "filename": hit.filename,
        "score": hit.score,
        "attributes": hit.attributes,
        "content": [{"type": "text", "text": hit.text}],
    }
