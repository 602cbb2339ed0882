"""/v1/batches: create, list, retrieve and cancel batches."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.http.response import HttpResponseBase

from core.database import in_database, in_thread
from openai_api.endpoints.pagination import page_of
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.schemas.base import ListQuery
from openai_api.schemas.batches import BatchBody, BatchRequest, BatchUsageBody
from storage.batches import cancel_batch, create_batch, find_batch, settle_batch
from storage.models import Batch


async def create_openai_batch(call: Call) -> HttpResponseBase:
    request = call.read(BatchRequest)
    batch = await in_database(
        create_batch,
        owner_id=call.owner_id,
        api_key_id=call.key.pk if call.key is not None else None,
        endpoint=request.endpoint,
        input_file_id=request.input_file_id,
        completion_window=request.completion_window,
        window=timedelta(hours=request.hours),
        metadata=request.metadata,
        output_expires_after_s=request.output_expires_after.seconds if request.output_expires_after else None,
    )
    return json_response(batch_body(batch))


async def list_batches(call: Call) -> HttpResponseBase:
    query = ListQuery.parse(call.request.GET)

    def read() -> dict[str, Any]:
        return page_of(Batch.objects.of(call.owner_id), query).body(lambda row: batch_body(settle_batch(batch=row)))

    return json_response(await in_thread(read))


async def get_batch(call: Call, batch_id: str) -> HttpResponseBase:
    return json_response(batch_body(await in_thread(find_batch, batch_id, owner_id=call.owner_id)))


async def cancel_openai_batch(call: Call, batch_id: str) -> HttpResponseBase:
    return json_response(batch_body(await in_thread(cancel_batch, public_id=batch_id, owner_id=call.owner_id)))


def batch_body(batch: Batch) -> BatchBody:
    return {
        "id": batch.public_id,
        "object": "batch",
        "endpoint": batch.endpoint,  # type: ignore[typeddict-item]  # the schema's
        "model": batch.model or None,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file,
        "completion_window": batch.completion_window,
        "status": batch.status,  # type: ignore[typeddict-item]  # its choices
        "output_file_id": batch.output_file or None,
        "error_file_id": batch.error_file or None,
        "created_at": int(batch.created_at.timestamp()),
        "in_progress_at": _seconds(batch.in_progress_at),
        "expires_at": int(batch.expires_at.timestamp()),
        "finalizing_at": _seconds(batch.finalizing_at),
        "completed_at": _seconds(batch.completed_at),
        "failed_at": _seconds(batch.failed_at),
        "expired_at": _seconds(batch.expired_at),
        "cancelling_at": _seconds(batch.cancelling_at),
        "cancelled_at": _seconds(batch.cancelled_at),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": _usage(batch.usage),
        "metadata": batch.metadata,
    }


def _usage(counts: dict[str, int]) -> BatchUsageBody:
    tokens_in, tokens_out = counts.get("input_tokens", 0), counts.get("output_tokens", 0)
    return {
        "input_tokens": tokens_in,
        "input_tokens_details": {"cached_tokens": counts.get("cached_tokens", 0)},
        "output_tokens": tokens_out,
        "output_tokens_details": {"reasoning_tokens": counts.get("reasoning_tokens", 0)},
        "total_tokens": tokens_in + tokens_out,
    }


def _seconds(moment: datetime | None) -> int | None:
    return int(moment.timestamp()) if moment is not None else None
