"""/v1/vector_stores: create, list, retrieve, update and delete vector stores."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from django.http.response import HttpResponseBase

from core.database import in_database
from openai_api.backend import get_backend
from openai_api.endpoints.pagination import page_of
from openai_api.generation.target import check_model_allowed
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.schemas.base import ListQuery
from openai_api.schemas.vector_store_bodies import VectorStoreBody, VectorStoreDeletedBody
from openai_api.schemas.vector_stores import AutoStrategy, StaticStrategy, StoreChange, StoreRequest
from storage.chunking import Chunking
from storage.embedder import Embedder
from storage.models import VectorStore
from storage.vector_stores import Attachment, bytes_of, counts_of, create_store, find_store, settle_files, usable_store


async def create_vector_store(call: Call) -> HttpResponseBase:
    request = call.read(StoreRequest)
    chosen = choose_embedder(call, None, request.embedding_model) if request.embedding_model or request.file_ids else ""
    store = VectorStore(
        owner_id=call.owner_id,
        name=request.name or "",
        description=request.description or "",
        metadata=request.metadata,
        expires_after_days=request.expires_after.days if request.expires_after else None,
        embedding_model=chosen if request.embedding_model else "",
        is_model_chosen=request.embedding_model is not None,
    )
    chunking = chunking_of(request.chunking_strategy)
    attachments = [Attachment(file_id, chunking=chunking) for file_id in dict.fromkeys(request.file_ids or ())]
    return json_response(await in_database(_create, store, attachments))


async def list_vector_stores(call: Call) -> HttpResponseBase:
    query = ListQuery.parse(call.request.GET)

    def render(store: VectorStore) -> VectorStoreBody:
        settle_files(store=store)
        return store_body(store)

    def read() -> dict[str, Any]:
        return page_of(VectorStore.objects.of(call.owner_id), query).body(render)

    return json_response(await in_database(read))


async def get_vector_store(call: Call, store_id: str) -> HttpResponseBase:
    return json_response(await in_database(lambda: store_body(find_store(store_id, owner_id=call.owner_id))))


async def update_vector_store(call: Call, store_id: str) -> HttpResponseBase:
    """Update the fields that the body names; null clears a field."""
    request = call.read(StoreChange)

    def change() -> VectorStoreBody:
        store = usable_store(store_id, owner_id=call.owner_id)
        named = request.model_fields_set
        store.name = (request.name or "") if "name" in named else store.name
        store.metadata = request.metadata if "metadata" in named else store.metadata
        if "expires_after" in named:
            store.expires_after_days = request.expires_after.days if request.expires_after else None
        store.save(update_fields=["name", "metadata", "expires_after_days"])
        return store_body(store)

    return json_response(await in_database(change))


async def delete_vector_store(call: Call, store_id: str) -> HttpResponseBase:
    await in_database(lambda: find_store(store_id, owner_id=call.owner_id).delete())
    body: VectorStoreDeletedBody = {"id": store_id, "object": "vector_store.deleted", "deleted": True}
    return json_response(body)


def embedder() -> Embedder:
    """Return an embedder on the engine that requests use."""
    backend = get_backend()
    return Embedder(backend.client, backend.registry)


def choose_embedder(call: Call, store: VectorStore | None, name: str | None = None) -> str:
    """Return the name of the store's embedding model. Raises StorageError 400, MillmError 403."""
    record = embedder().resolve(store, name)
    call.use_model(record.name)
    check_model_allowed(call.key, record)
    return record.name


def chunking_of(strategy: AutoStrategy | StaticStrategy | None) -> Chunking:
    if isinstance(strategy, StaticStrategy):
        return Chunking(strategy.static.max_chunk_size_tokens, strategy.static.chunk_overlap_tokens)
    return Chunking()


def store_body(store: VectorStore) -> VectorStoreBody:
    counts = counts_of(store)
    status = "expired" if store.has_expired else "in_progress" if counts.in_progress else "completed"
    return {
        "id": store.public_id,
        "object": "vector_store",
        "created_at": int(store.created_at.timestamp()),
        "name": store.name,
        "description": store.description,
        "usage_bytes": bytes_of(store),
        "file_counts": dataclasses.asdict(counts),  # type: ignore[typeddict-item]  # the same fields
        "status": status,  # type: ignore[typeddict-item]  # one of three
        "expires_after": _expiry(store),
        "expires_at": int(store.expires_at.timestamp()) if store.expires_at is not None else None,
        "last_active_at": int(store.last_active_at.timestamp()),
        "metadata": store.metadata,
        "embedding_model": store.embedding_model or None,
    }


def _expiry(store: VectorStore) -> Any:
    if store.expires_after_days is None:
        return None
    return {"anchor": "last_active_at", "days": store.expires_after_days}


def _create(store: VectorStore, attachments: Sequence[Attachment]) -> VectorStoreBody:
    return store_body(create_store(store=store, attachments=attachments))
