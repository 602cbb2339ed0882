"""Create, find, fill, search and delete vector stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Count, Q, Sum
from django.utils import timezone

from core.ids import MAX_LENGTH
from jobs.models import Job
from jobs.services import cancel_job, enqueue_job
from storage.chunking import Chunking
from storage.errors import ExtractionError, StorageError, not_found
from storage.extraction.formats import check_supported
from storage.files import find_file
from storage.job_rows import find_job
from storage.models import Chunk, FileBatch, VectorStore, VectorStoreFile

INGESTION_KIND = "storage.ingestion"
JOB_PRIORITY = -10
ACTIVE_EVERY = timedelta(minutes=1)
Status = VectorStoreFile.Status


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file to be added to a store."""

    file_id: str
    attributes: dict[str, Any] = field(default_factory=dict)
    chunking: Chunking = field(default_factory=Chunking)


@dataclass(frozen=True, slots=True)
class FileCounts:
    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


def find_store(public_id: str, *, owner_id: int | None) -> VectorStore:
    found = None
    if len(public_id) <= MAX_LENGTH and "\0" not in public_id:
        found = VectorStore.objects.of(owner_id).filter(public_id=public_id).first()
    if found is None:
        raise not_found("vector store", public_id, code="vector_store_not_found", param="vector_store_id")
    settle_files(store=found)
    return found


def usable_store(public_id: str, *, owner_id: int | None) -> VectorStore:
    """Return the store and mark it as active. Raise StorageError if it does not exist or has expired."""
    store = find_store(public_id, owner_id=owner_id)
    if store.has_expired:
        raise StorageError("The vector store has expired.", code="vector_store_expired", param="vector_store_id")
    now = timezone.now()
    if now - store.last_active_at > ACTIVE_EVERY:
        store.last_active_at = now
        store.save(update_fields=["last_active_at"])
    return store


def find_store_file(store: VectorStore, file_id: str) -> VectorStoreFile:
    found = None
    if len(file_id) <= MAX_LENGTH and "\0" not in file_id:
        found = store.files.select_related("file", "store").filter(file__public_id=file_id).first()
    if found is None:
        raise not_found("file in this vector store", file_id, code="file_not_found", param="file_id")
    return found


def find_file_batch(store: VectorStore, public_id: str) -> FileBatch:
    found = None
    if len(public_id) <= MAX_LENGTH and "\0" not in public_id:
        found = store.file_batches.filter(public_id=public_id).first()
    if found is None:
        raise not_found("file batch", public_id, code="file_batch_not_found", param="batch_id")
    return found


@transaction.atomic
def create_store(*, store: VectorStore, attachments: Sequence[Attachment]) -> VectorStore:
    store.save()
    if attachments:
        attach_files(store=store, attachments=attachments)
    return store


@transaction.atomic
def attach_files(*, store: VectorStore, attachments: Sequence[Attachment]) -> list[VectorStoreFile]:
    """Enqueue a job that adds the files. A file that is already attached is read again. Raise StorageError."""
    return _attach(store, attachments, batch=None)


@transaction.atomic
def attach_file_batch(*, store: VectorStore, attachments: Sequence[Attachment]) -> FileBatch:
    batch = FileBatch.objects.create(store=store)
    _attach(store, attachments, batch=batch)
    return batch


@transaction.atomic
def cancel_file_batch(*, batch: FileBatch) -> FileBatch:
    """Cancel the files that have not been read yet; the others stay in the store."""
    batch.is_cancelled = True
    batch.save(update_fields=["is_cancelled"])
    waiting = batch.files.filter(status=Status.IN_PROGRESS)
    for job_id in set(waiting.values_list("job_id", flat=True)):
        job = find_job(job_id)
        if job is not None and not job.has_ended and not job.cancel_requested:
            cancel_job(job=job)
    end_files(files=list(waiting), status=Status.CANCELLED)
    return batch


@transaction.atomic
def detach_file(*, store_file: VectorStoreFile) -> None:
    """Remove the file from the store with its chunks; the file itself stays."""
    store_file.delete()


def end_files(*, files: Sequence[VectorStoreFile], status: str, code: str = "", message: str = "") -> None:
    """Set the final status of files and delete their chunks."""
    rows = VectorStoreFile.objects.filter(pk__in=[file.pk for file in files], status=Status.IN_PROGRESS)
    with transaction.atomic():
        ended = list(rows.select_for_update().values_list("pk", flat=True))
        Chunk.objects.filter(store_file__in=ended).delete()
        changes = {"status": status, "error_code": code, "error_message": message[:2_000], "usage_bytes": 0}
        VectorStoreFile.objects.filter(pk__in=ended).update(**changes)


def settle_files(*, store: VectorStore) -> None:
    """End files whose job has ended without them: cancelled before it ran, deleted, or crashed too often."""
    waiting = list(store.files.filter(status=Status.IN_PROGRESS))
    for job_id in {row.job_id for row in waiting}:
        job = find_job(job_id)
        if job is not None and not job.has_ended:
            continue
        files = [row for row in waiting if row.job_id == job_id]
        if job is not None and job.state == Job.State.CANCELLED:
            end_files(files=files, status=Status.CANCELLED)
        else:
            message = (job.error if job is not None else "") or "The job that adds this file no longer exists."
            end_files(files=files, status=Status.FAILED, code="server_error", message=message)


def counts_of(owner: VectorStore | FileBatch) -> FileCounts:
    per_status = {status: Count("pk", filter=Q(status=status)) for status in Status.values}
    return FileCounts(**owner.files.aggregate(total=Count("pk"), **per_status))


def bytes_of(store: VectorStore) -> int:
    return store.files.aggregate(total=Sum("usage_bytes"))["total"] or 0


def _attach(store: VectorStore, attachments: Sequence[Attachment], *, batch: FileBatch | None) -> list[VectorStoreFile]:
    rows = [_add_file(store, attachment, batch) for attachment in attachments]
    owner = get_user_model().objects.filter(pk=store.owner_id).first() if store.owner_id is not None else None
    job = enqueue_job(
        kind=INGESTION_KIND,
        params={"files": [row.pk for row in rows]},
        owner=owner,
        title=f"Add {len(rows)} file{'s'[: len(rows) != 1]} to {store.name or store.public_id}",
        priority=JOB_PRIORITY,
    )
    VectorStoreFile.objects.filter(pk__in=[row.pk for row in rows]).update(job_id=job.id)
    return rows


def _add_file(store: VectorStore, attachment: Attachment, batch: FileBatch | None) -> VectorStoreFile:
    file = find_file(attachment.file_id, owner_id=store.owner_id)
    try:
        check_supported(file.filename)
    except ExtractionError as error:
        raise StorageError(error.message, code="unsupported_file_type", param="file_id") from None
    row, is_new = VectorStoreFile.objects.update_or_create(
        store=store,
        file=file,
        defaults={
            "batch": batch,
            "attributes": attachment.attributes,
            "max_chunk_tokens": attachment.chunking.max_tokens,
            "overlap_tokens": attachment.chunking.overlap,
            "status": Status.IN_PROGRESS,
            "error_code": "",
            "error_message": "",
            "usage_bytes": 0,
        },
    )
    if not is_new:
        row.chunks.all().delete()
    return row
