"""Anthropic's message batches: ordinary batches whose requests go to /v1/messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from core.database import in_thread
from openai_api.endpoints.pagination import page_of
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import MESSAGES, invalid
from openai_api.http.public_url import public_url
from openai_api.schemas.anthropic_batches import (
    MessageBatchBody,
    MessageBatchCounts,
    MessageBatchDeletedBody,
    MessageBatchListBody,
    MessageBatchQuery,
    MessageBatchRequest,
)
from openai_api.schemas.base import ListQuery
from storage.batches import Status, cancel_batch, create_batch, delete_batch, find_batch, settle_batch
from storage.blobs import BlobStore
from storage.errors import ObjectNotFoundError, StorageConflictError, not_found
from storage.files import find_file, keep_file
from storage.models import Batch, StoredFile

WINDOW_H = 24
NUM_REQUESTS = "requests"  # stored in the metadata until the lines are counted
Line = dict[str, Any]


async def create_message_batch(call: Call) -> HttpResponseBase:
    body = call.read(MessageBatchRequest)

    def create() -> Batch:
        with BlobStore.from_settings().writing() as writer:
            for request in body.requests:
                line = {"custom_id": request.custom_id, "method": "POST", "url": MESSAGES, "body": request.params}
                writer.write(json.dumps(line).encode() + b"\n")
            file = keep_file(writer=writer, filename="requests.jsonl", purpose="batch", owner_id=call.owner_id)
        return create_batch(
            owner_id=call.owner_id,
            api_key_id=call.key.pk if call.key is not None else None,
            endpoint=MESSAGES,
            input_file_id=file.public_id,
            completion_window=f"{WINDOW_H}h",
            window=timedelta(hours=WINDOW_H),
            metadata={NUM_REQUESTS: str(len(body.requests))},
            output_expires_after_s=None,
        )

    return json_response(batch_body(await in_thread(create), call.request))


async def list_message_batches(call: Call) -> HttpResponseBase:
    query = MessageBatchQuery.parse(call.request.GET)
    page_query = ListQuery.model_construct(limit=query.limit, after=query.after_id, before=query.before_id)

    def read() -> MessageBatchListBody:
        page = page_of(Batch.objects.of(call.owner_id).filter(endpoint=MESSAGES), page_query)
        data = [batch_body(settle_batch(batch=row), call.request) for row in page.rows]
        return {
            "data": data,
            "has_more": page.has_more,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
        }

    return json_response(await in_thread(read))


async def get_message_batch(call: Call, batch_id: str) -> HttpResponseBase:
    return json_response(batch_body(await in_thread(_find, call, batch_id), call.request))


async def cancel_message_batch(call: Call, batch_id: str) -> HttpResponseBase:
    """Cancel a batch; one that has ended stays as it is."""

    def cancel() -> Batch:
        batch = _find(call, batch_id)
        try:
            return batch if batch.has_ended else cancel_batch(public_id=batch_id, owner_id=call.owner_id)
        except StorageConflictError:  # it ended in the meantime
            return _find(call, batch_id)

    return json_response(batch_body(await in_thread(cancel), call.request))


async def delete_message_batch(call: Call, batch_id: str) -> HttpResponseBase:
    def delete() -> None:
        delete_batch(batch=_ended(_find(call, batch_id), "deleted"))

    await in_thread(delete)
    body: MessageBatchDeletedBody = {"id": batch_id, "type": "message_batch_deleted"}
    return json_response(body)


async def message_batch_results(call: Call, batch_id: str) -> HttpResponseBase:
    """Return one line for each request, in no particular order."""

    def read() -> bytes:
        batch = _ended(_find(call, batch_id), "read")
        return b"".join(json.dumps(line).encode() + b"\n" for line in results_of(batch))

    return HttpResponse(await in_thread(read), content_type="application/x-jsonl")


def batch_body(batch: Batch, request: HttpRequest) -> MessageBatchBody:
    ended_at = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
    path = f"{MESSAGES}/batches/{batch.public_id}/results"
    is_cancelling = batch.status == Status.CANCELLING
    return {
        "id": batch.public_id,
        "type": "message_batch",
        "processing_status": "ended" if batch.has_ended else "canceling" if is_cancelling else "in_progress",
        "request_counts": counts_of(batch),
        "created_at": _text(batch.created_at),
        "expires_at": _text(batch.expires_at),
        "ended_at": _text(ended_at) if batch.has_ended and ended_at else None,
        "cancel_initiated_at": _text(batch.cancelling_at) if batch.cancelling_at else None,
        "archived_at": None,
        "results_url": public_url(request, path) if batch.has_ended else None,
    }


def counts_of(batch: Batch) -> MessageBatchCounts:
    total = batch.total or int((batch.metadata or {}).get(NUM_REQUESTS, 0))
    left = total - batch.completed - batch.failed
    counts: MessageBatchCounts = {
        "processing": 0 if batch.has_ended else left,
        "succeeded": batch.completed,
        "errored": batch.failed,
        "canceled": left if batch.status == Status.CANCELLED else 0,
        "expired": 0,
    }
    if batch.status == Status.FAILED:
        counts["errored"] += left
    elif batch.status == Status.EXPIRED:
        expired = sum(line["result"]["type"] == "expired" for line in results_of(batch))
        counts["errored"], counts["expired"] = batch.failed - expired, expired
    return counts


def results_of(batch: Batch) -> Iterator[Line]:
    """Yield the result of each request of a batch that has ended."""
    answered = set[str]()
    for name in (batch.output_file, batch.error_file):
        for line in _lines(name, batch):
            answered.add(line["custom_id"])
            yield {"custom_id": line["custom_id"], "result": _result(line)}
    for line in _lines(batch.input_file, batch):
        if line["custom_id"] not in answered:
            yield {"custom_id": line["custom_id"], "result": _unanswered(batch)}


def _result(line: Line) -> dict[str, Any]:
    response = line["response"]
    if response is None:
        return {"type": "expired"}
    if response["status_code"] < 400:
        return {"type": "succeeded", "message": response["body"]}
    return {"type": "errored", "error": {**response["body"], "request_id": response["request_id"]}}


def _unanswered(batch: Batch) -> dict[str, Any]:
    if batch.status == Status.CANCELLED:
        return {"type": "canceled"}
    message = batch.errors[0]["message"] if batch.errors else "The batch failed."
    error = {"type": "api_error", "message": message}
    return {"type": "errored", "error": {"type": "error", "error": error, "request_id": None}}


def _lines(file_id: str, batch: Batch) -> Iterator[Line]:
    """Yield the lines of a file, none if the file was deleted."""
    try:
        file: StoredFile = find_file(file_id, owner_id=batch.owner_id)
    except ObjectNotFoundError:
        return
    with BlobStore.from_settings().open(file.blob) as source:
        for raw in source:
            yield json.loads(raw)


def _find(call: Call, batch_id: str) -> Batch:
    batch = find_batch(batch_id, owner_id=call.owner_id)
    if batch.endpoint != MESSAGES:
        raise not_found("batch", batch_id, code="batch_not_found", param="batch_id")
    return batch


def _ended(batch: Batch, act: str) -> Batch:
    if not batch.has_ended:
        raise invalid(f"The batch is still being processed. It can be {act} once it has ended.", param="batch_id")
    return batch


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
