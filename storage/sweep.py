"""Delete unreachable data: expired objects, blobs without a row, temporary files.

Periodic jobs do it: one when something has expired, and one a day for blobs without a row, which lists all blobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from storage.blobs import BlobStore
from storage.files import delete_files
from storage.models import Batch, Chunk, StoredFile, Upload, UploadPart, VectorStore
from storage.uploads import drop_parts

if TYPE_CHECKING:
    from jobs.running_job import RunningJob

ABANDONED_S = 86_400.0  # no writer takes longer


@dataclass(frozen=True, slots=True)
class Sweep:
    files: int
    uploads: int
    blobs: int
    chunks: int = 0


def sweep_storage() -> Sweep:
    """Delete expired and orphaned objects. Idempotent; several processes may run it at once."""
    return Sweep(blobs=_delete_orphans(), **_delete_expired())


def has_expired() -> bool:
    return any(rows.exists() for rows in (_expired_files(), _overdue_uploads(), _expired_chunks()))


def may_have_orphans() -> bool:
    """Return whether something was stored so long ago that a blob without a row is not still being written."""
    long_ago = timezone.now() - timedelta(seconds=ABANDONED_S)
    return any(rows.objects.filter(created_at__lt=long_ago).exists() for rows in (StoredFile, Upload, Batch))


def run_expire(job: RunningJob) -> dict[str, int]:
    job.progress(0, 1, "Deleting expired files")
    counts = _delete_expired()
    job.progress(1, 1)
    return counts


def run_orphans(job: RunningJob) -> dict[str, int]:
    job.progress(0, 1, "Looking for files without a row")
    count = _delete_orphans()
    job.progress(1, 1)
    return {"blobs": count}


def _delete_expired() -> dict[str, int]:
    return {
        "files": delete_files(files=_expired_files()),
        "uploads": _expire_uploads(),
        "chunks": _expired_chunks().delete()[0],
    }


def _expired_files() -> QuerySet[StoredFile]:
    return StoredFile.objects.filter(expires_at__lte=timezone.now())


def _overdue_uploads() -> QuerySet[Upload]:
    return Upload.objects.filter(status=Upload.Status.PENDING, expires_at__lte=timezone.now())


def _expire_uploads() -> int:
    with transaction.atomic():
        overdue = list(_overdue_uploads().select_for_update(skip_locked=True))
        for upload in overdue:
            upload.status = Upload.Status.EXPIRED
            upload.save(update_fields=["status"])
            drop_parts(upload)
    return len(overdue)


def _expired_chunks() -> QuerySet[Chunk]:
    """Return the chunks of expired stores. The stores stay and report that they have expired."""
    stores = VectorStore.objects.filter(expires_after_days__isnull=False)
    return Chunk.objects.filter(store__in=[store.pk for store in stores.iterator() if store.has_expired])


def _delete_orphans() -> int:
    """Delete blobs whose writer crashed before it wrote the row, and blobs of deleted owners."""
    store = BlobStore.from_settings()
    old = set(store.names(older_than_s=ABANDONED_S))
    old -= set(StoredFile.objects.filter(blob__in=old).values_list("blob", flat=True))
    old -= set(UploadPart.objects.filter(blob__in=old).values_list("blob", flat=True))
    for name in old:
        store.delete(name)
    _delete_orphaned_results(store)
    return len(old) + store.delete_unfinished(older_than_s=ABANDONED_S)


def _delete_orphaned_results(store: BlobStore) -> None:
    """Delete the results of batches that were deleted while they ran, and of those that ended on another machine."""
    folders = store.folders("batches")
    known = Batch.objects.filter(public_id__in=folders).exclude(status__in=Batch.ENDED)
    for name in folders - set(known.values_list("public_id", flat=True)):
        store.drop_folder(f"batches/{name}")
