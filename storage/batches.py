"""Create, find, cancel, finish and delete batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db import transaction

from core.ids import MAX_LENGTH
from jobs.models import Job
from jobs.services import account_of, cancel_job, enqueue_job
from jobs.webhooks.models import EventType
from jobs.webhooks.outbox import Event, queue_events
from storage.batch_lines import LineError, Validation
from storage.batch_results import BatchResults, Checkpoint
from storage.errors import StorageConflictError, StorageError, not_found
from storage.files import delete_files, find_file, keep_file
from storage.job_rows import find_job
from storage.models import Batch, StoredFile

BATCH_KIND = "openai_api.batch"
MEDIA_BATCH_KIND = "openai_api.media_batch"
MEDIA_ENDPOINTS = frozenset({"/v1/images/generations", "/v1/videos"})
Status = Batch.Status
JOB_PRIORITY = -100  # after all jobs that people wait for


@transaction.atomic
def create_batch(
    *,
    owner_id: int | None,
    api_key_id: int | None,
    endpoint: str,
    input_file_id: str,
    completion_window: str,
    window: timedelta,
    metadata: dict[str, str] | None,
    output_expires_after_s: int | None,
) -> Batch:
    """Create a batch and enqueue its job. Raise StorageError if the file cannot be the input of a batch."""
    file = find_file(input_file_id, owner_id=owner_id, param="input_file_id")
    if file.purpose != StoredFile.Purpose.BATCH:
        raise StorageError(f"The `purpose` of the file must be `batch`, got `{file.purpose}`.", param="input_file_id")
    batch = Batch(
        owner_id=owner_id,
        api_key_id=api_key_id,
        endpoint=endpoint,
        input_file=file.public_id,
        completion_window=completion_window,
        metadata=metadata,
        output_expires_after_s=output_expires_after_s,
    )
    batch.expires_at = batch.created_at + window
    owner = get_user_model().objects.filter(pk=owner_id).first() if owner_id is not None else None
    title = f"Batch of {file.filename}"
    job = enqueue_job(
        kind=MEDIA_BATCH_KIND if endpoint in MEDIA_ENDPOINTS else BATCH_KIND,
        params={"batch": batch.public_id},
        owner=owner,
        title=title,
        priority=JOB_PRIORITY,
        account=account_of(owner_id, api_key_id),
    )
    batch.job_id = job.id
    batch.save()
    return batch


def find_batch(public_id: str, *, owner_id: int | None) -> Batch:
    found = None
    if len(public_id) <= MAX_LENGTH and "\0" not in public_id:
        found = Batch.objects.of(owner_id).filter(public_id=public_id).first()
    if found is None:
        raise not_found("batch", public_id, code="batch_not_found", param="batch_id")
    return settle_batch(batch=found)


def cancel_batch(*, public_id: str, owner_id: int | None) -> Batch:
    """Cancel a batch; a running one ends soon and keeps its results. Raise StorageConflictError if it has ended."""
    with transaction.atomic():
        batch = Batch.objects.select_for_update().get(pk=find_batch(public_id, owner_id=owner_id).pk)
        if batch.has_ended:
            raise StorageConflictError(
                f"The batch cannot be cancelled because it is already {batch.status}.", code="batch_ended"
            )
        if batch.status != Status.CANCELLING:
            batch.enter(Status.CANCELLING)
            batch.save()
        job = find_job(batch.job_id)
        if job is not None and not job.has_ended and not job.cancel_requested:
            cancel_job(job=job)
    return settle_batch(batch=batch)


def delete_batch(*, batch: Batch) -> None:
    """Delete a batch that has ended, with its files."""
    names = [batch.input_file, batch.output_file, batch.error_file]
    with transaction.atomic():
        delete_files(files=StoredFile.objects.of(batch.owner_id).filter(public_id__in=[name for name in names if name]))
        Batch.objects.filter(pk=batch.pk).delete()


def settle_batch(*, batch: Batch) -> Batch:
    """End a batch whose job has ended without it: cancelled before it ran, deleted, or crashed too often."""
    if batch.has_ended:
        return batch
    job = find_job(batch.job_id)
    if job is not None and not job.has_ended:
        return batch
    done = Checkpoint.read(job.checkpoint if job is not None else {})
    if job is not None and job.state == Job.State.CANCELLED:
        return finish_batch(batch=batch, status=Status.CANCELLED, done=done)
    message = (job.error if job is not None else "") or "The job of the batch no longer exists."
    return finish_batch(batch=batch, status=Status.FAILED, done=done, errors=[LineError("server_error", message)])


def start_batch(*, batch: Batch, validation: Validation) -> Batch:
    """Start the batch, or fail it if its input is invalid."""
    if validation.errors:
        return finish_batch(batch=batch, status=Status.FAILED, done=Checkpoint(), errors=validation.errors)
    batch.total, batch.model = validation.total, validation.model
    return _move(batch, Status.IN_PROGRESS, ("total", "model"))


def note_progress(*, batch: Batch, done: Checkpoint) -> None:
    batch.completed, batch.failed, batch.usage = done.completed, done.failed, dict(done.usage)
    batch.save(update_fields=["completed", "failed", "usage"])


def finish_batch(*, batch: Batch, status: str, done: Checkpoint, errors: Sequence[LineError] = ()) -> Batch:
    """Store the results as files and end the batch, in one transaction. Idempotent: a second call is a no-op."""
    results = BatchResults(batch.public_id, done.run)
    results.fetch(done)
    with transaction.atomic():
        row = Batch.objects.select_for_update().get(pk=batch.pk)
        if row.has_ended:
            return row
        row.enter(Status.FINALIZING)
        row.completed, row.failed, row.usage = done.completed, done.failed, dict(done.usage)
        row.errors = [asdict(error) for error in errors]
        row.output_file = _keep(row, results, done, "output")
        row.error_file = _keep(row, results, done, "errors")
        row.enter(status)
        row.save()
        queue_events([Event(EventType(f"batch.{row.status}"), {"id": row.public_id}, row.owner_id)])
        transaction.on_commit(results.drop)
    return row


def _keep(batch: Batch, results: BatchResults, done: Checkpoint, kind: str) -> str:
    is_output = kind == "output"
    path, size = (results.output, done.output_bytes) if is_output else (results.errors, done.error_bytes)
    with results.writing(path, size) as writer:
        if writer is None:
            return ""
        file = keep_file(
            writer=writer,
            filename=f"{batch.public_id}_{kind}.jsonl",
            purpose=StoredFile.Purpose.BATCH_OUTPUT,
            owner_id=batch.owner_id,
            expires_after_s=batch.output_expires_after_s,
        )
        return file.public_id


def _move(batch: Batch, status: str, changed: Sequence[str] = ()) -> Batch:
    """Set the status unless the batch is being cancelled."""
    batch.enter(status)
    values: dict[str, Any] = {name: getattr(batch, name) for name in ("status", f"{status}_at", *changed)}
    if not Batch.objects.filter(pk=batch.pk, status__in=(Status.VALIDATING, Status.IN_PROGRESS)).update(**values):
        batch.refresh_from_db()
    return batch
