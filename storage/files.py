"""Files: kept, found, deleted."""

from __future__ import annotations

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from core.ids import MAX_LENGTH
from storage.blobs import BlobStore, BlobWriter
from storage.errors import not_found
from storage.file_rules import lifetime
from storage.models import StoredFile
from storage.quota import check_quota


def keep_file(
    *,
    writer: BlobWriter,
    filename: str,
    purpose: str,
    owner_id: int | None,
    expires_after_s: int | None = None,
    counted: int = 0,
) -> StoredFile:
    """Make what was written a file of ``owner_id``. Bytes whose row cannot be written are removed again.

    ``counted`` of them count against the owner's quota already. Raises StorageQuotaError.
    """
    store, blob = BlobStore.from_settings(), writer.keep()
    created_at, life = timezone.now(), lifetime(purpose, expires_after_s)
    try:
        with transaction.atomic():
            if purpose != StoredFile.Purpose.BATCH_OUTPUT:
                check_quota(owner_id, blob.size - counted)
            return StoredFile.objects.create(
                owner_id=owner_id,
                filename=filename,
                purpose=purpose,
                size=blob.size,
                sha256=blob.sha256,
                blob=blob.name,
                created_at=created_at,
                expires_at=created_at + life if life is not None else None,
            )
    except BaseException:
        store.delete(blob.name)
        raise


def find_file(public_id: str, *, owner_id: int | None, param: str = "file_id") -> StoredFile:
    """Raises ObjectNotFoundError for ids that are absent, expired or another owner's."""
    found = None
    if len(public_id) <= MAX_LENGTH and "\0" not in public_id:
        found = StoredFile.objects.of(owner_id).current().filter(public_id=public_id).first()
    if found is None:
        raise not_found("file", public_id, code="file_not_found", param=param)
    return found


def delete_files(*, files: QuerySet[StoredFile]) -> int:
    """Delete the files, and with them what vector stores hold of them; returns how many."""
    with transaction.atomic():
        blobs = list(files.select_for_update().values_list("blob", flat=True))
        StoredFile.objects.filter(blob__in=blobs).delete()
        transaction.on_commit(lambda: delete_blobs(blobs))
    return len(blobs)


def delete_blobs(names: list[str]) -> None:
    store = BlobStore.from_settings()
    for name in names:
        store.delete(name)
