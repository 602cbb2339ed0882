"""Files in vector stores, singly and in batches."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.http.response import HttpResponseBase

from core.database import in_database
from openai_api.endpoints.pagination import page_of
from openai_api.endpoints.vector_stores import choose_embedder, chunking_of
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.schemas.vector_store_bodies import (
    FileBatchBody,
    StoreFileBody,
    StoreFileContentBody,
    StoreFileDeletedBody,
)
from openai_api.schemas.vector_stores import AttachRequest, AttributeChange, FileBatchRequest, StoreFileQuery
from storage.models import FileBatch, VectorStore, VectorStoreFile
from storage.vector_stores import (
    Attachment,
    attach_file_batch,
    attach_files,
    cancel_file_batch,
    counts_of,
    detach_file,
    find_file_batch,
    find_store,
    find_store_file,
    usable_store,
)


async def attach_file(call: Call, store_id: str) -> HttpResponseBase:
    request = call.read(AttachRequest)
    store = await in_database(usable_store, store_id, owner_id=call.owner_id)
    choose_embedder(call, store)
    attachment = Attachment(request.file_id, request.attributes or {}, chunking_of(request.chunking_strategy))

    def attach() -> StoreFileBody:
        (row,) = attach_files(store=store, attachments=[attachment])
        return store_file_body(row)

    return json_response(await in_database(attach))


async def list_store_files(call: Call, store_id: str) -> HttpResponseBase:
    query = StoreFileQuery.parse(call.request.GET)

    def read() -> dict[str, Any]:
        return files_page(find_store(store_id, owner_id=call.owner_id), query)

    return json_response(await in_database(read))


async def get_store_file(call: Call, store_id: str, file_id: str) -> HttpResponseBase:
    return json_response(await in_database(lambda: store_file_body(_find(call, store_id, file_id))))


async def update_store_file(call: Call, store_id: str, file_id: str) -> HttpResponseBase:
    request = call.read(AttributeChange)

    def change() -> StoreFileBody:
        row = _find(call, store_id, file_id)
        row.attributes = request.attributes or {}
        row.save(update_fields=["attributes"])
        return store_file_body(row)

    return json_response(await in_database(change))


async def delete_store_file(call: Call, store_id: str, file_id: str) -> HttpResponseBase:
    await in_database(lambda: detach_file(store_file=_find(call, store_id, file_id)))
    body: StoreFileDeletedBody = {"id": file_id, "object": "vector_store.file.deleted", "deleted": True}
    return json_response(body)


async def get_store_file_content(call: Call, store_id: str, file_id: str) -> HttpResponseBase:
    """Return the chunks of a file, in order."""

    def read() -> StoreFileContentBody:
        texts = _find(call, store_id, file_id).chunks.order_by("position").values_list("text", flat=True)
        return {
            "object": "vector_store.file_content.page",
            "data": [{"type": "text", "text": text} for text in texts],
            "has_more": False,
            "next_page": None,
        }

    return json_response(await in_database(read))


async def create_file_batch(call: Call, store_id: str) -> HttpResponseBase:
    request = call.read(FileBatchRequest)
    store = await in_database(usable_store, store_id, owner_id=call.owner_id)
    choose_embedder(call, store)

    def attach() -> FileBatchBody:
        return file_batch_body(store, attach_file_batch(store=store, attachments=attachments_of(request)))

    return json_response(await in_database(attach))


async def get_file_batch(call: Call, store_id: str, batch_id: str) -> HttpResponseBase:
    def read() -> FileBatchBody:
        store = find_store(store_id, owner_id=call.owner_id)
        return file_batch_body(store, find_file_batch(store, batch_id))

    return json_response(await in_database(read))


async def cancel_store_file_batch(call: Call, store_id: str, batch_id: str) -> HttpResponseBase:
    def cancel() -> FileBatchBody:
        store = find_store(store_id, owner_id=call.owner_id)
        return file_batch_body(store, cancel_file_batch(batch=find_file_batch(store, batch_id)))

    return json_response(await in_database(cancel))


async def list_file_batch_files(call: Call, store_id: str, batch_id: str) -> HttpResponseBase:
    query = StoreFileQuery.parse(call.request.GET)

    def read() -> dict[str, Any]:
        return files_page(find_file_batch(find_store(store_id, owner_id=call.owner_id), batch_id), query)

    return json_response(await in_database(read))


def attachments_of(request: FileBatchRequest) -> list[Attachment]:
    """Return each file once; if a file has several entries the last one counts."""
    if request.files is not None:
        files = [
            Attachment(one.file_id, one.attributes or {}, chunking_of(one.chunking_strategy)) for one in request.files
        ]
    else:
        chunking = chunking_of(request.chunking_strategy)
        files = [Attachment(file_id, request.attributes or {}, chunking) for file_id in request.file_ids or ()]
    return list({one.file_id: one for one in files}.values())


def files_page(place: VectorStore | FileBatch, query: StoreFileQuery) -> dict[str, Any]:
    rows = place.files.select_related("file", "store")
    rows = rows if query.filter is None else rows.filter(status=query.filter)
    return page_of(rows, query, id_field="file__public_id").body(store_file_body)


def store_file_body(row: VectorStoreFile) -> StoreFileBody:
    return {
        "id": row.file.public_id,
        "object": "vector_store.file",
        "created_at": int(row.created_at.timestamp()),
        "vector_store_id": row.store.public_id,
        "usage_bytes": row.usage_bytes,
        "status": row.status,  # type: ignore[typeddict-item]  # its choices
        "last_error": {"code": row.error_code, "message": row.error_message} if row.error_code else None,  # type: ignore[typeddict-item]  # one of three
        "attributes": row.attributes,
        "chunking_strategy": {
            "type": "static",
            "static": {"max_chunk_size_tokens": row.max_chunk_tokens, "chunk_overlap_tokens": row.overlap_tokens},
        },
    }


def file_batch_body(store: VectorStore, batch: FileBatch) -> FileBatchBody:
    counts = counts_of(batch)
    if counts.in_progress:
        status = "in_progress"
    elif batch.is_cancelled:
        status = "cancelled"
    else:
        status = "failed" if counts.failed and counts.failed == counts.total else "completed"
    return {
        "id": batch.public_id,
        "object": "vector_store.files_batch",
        "created_at": int(batch.created_at.timestamp()),
        "vector_store_id": store.public_id,
        "status": status,  # type: ignore[typeddict-item]  # one of four
        "file_counts": dataclasses.asdict(counts),  # type: ignore[typeddict-item]  # the same fields
    }


def _find(call: Call, store_id: str, file_id: str) -> VectorStoreFile:
    return find_store_file(find_store(store_id, owner_id=call.owner_id), file_id)
