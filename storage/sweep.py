"""Delete unreachable data: expired objects, blobs without a row, temporary files."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from django.db import transaction
from django.utils import timezone

from storage.blobs import BlobStore
from storage.files import delete_files
from storage.models import Batch, Chunk, StoredFile, Upload, UploadPart, VectorStore
from storage.uploads import drop_parts

ABANDONED_S = 86_400.0  # no writer takes longer
EVERY_S = 300.0
_turn = threading.Lock()
_last = [float("-inf")]


@dataclass(frozen=True, slots=True)
class Sweep:
    files: int
    uploads: int
    blobs: int
    chunks: int = 0


def sweep_storage() -> Sweep:
    """Delete expired and orphaned objects. Idempotent; several processes may run it at once."""
    expired = StoredFile.objects.filter(expires_at__lte=timezone.now())
    return Sweep(
        files=delete_files(files=expired), uploads=_expire_uploads(), blobs=_delete_orphans(), chunks=_expire_stores()
    )


def sweep_sometimes() -> None:
    """Run the sweep at most every five minutes. Called by requests that write, so no separate thread is needed."""
    with _turn:
        if time.monotonic() - _last[0] < EVERY_S:
            return
        _last[0] = time.monotonic()
    sweep_storage()


def _expire_uploads() -> int:
    with transaction.atomic():
        rows = Upload.objects.select_for_update(skip_locked=True)
        overdue = list(rows.filter(status=Upload.Status.PENDING, expires_at__lte=timezone.now()))
        for upload in overdue:
            upload.status = Upload.Status.EXPIRED
            upload.save(update_fields=["status"])
            drop_parts(upload)
    return len(overdue)


def _expire_stores() -> int:
    """Delete the chunks of expired stores. The stores stay and report that they have expired."""
    stores = VectorStore.objects.filter(expires_after_days__isnull=False)
    overdue = [store.pk for store in stores.iterator() if store.has_expired]
    return Chunk.objects.filter(store__in=overdue).delete()[0]


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
