"""Files of clients: names, purposes, quota, creation and deletion."""

from __future__ import annotations

import unicodedata
from datetime import timedelta

from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from core.ids import MAX_LENGTH
from storage.blobs import BlobStore, BlobWriter
from storage.errors import StorageError, StorageQuotaError, not_found
from storage.models import StoredFile, Upload, UploadPart

Purpose = StoredFile.Purpose
CLIENT_PURPOSES = (Purpose.ASSISTANTS, Purpose.BATCH, Purpose.FINE_TUNE, Purpose.USER_DATA, Purpose.VISION)
BATCH_LIFETIME = timedelta(days=30)  # default lifetime of files for and by batches
MAX_NAME = 255
NAME_OF_NONE = "file"
_LINES = {Purpose.BATCH, Purpose.FINE_TUNE}
_IMAGES = {b"\x89PNG\r\n\x1a\n": 0, b"\xff\xd8\xff": 0, b"GIF87a": 0, b"GIF89a": 0, b"WEBP": 8}  # signature: offset


def check_purpose(purpose: str) -> str:
    if purpose not in CLIENT_PURPOSES:
        known = ", ".join(sorted(CLIENT_PURPOSES))
        raise StorageError(f"The purpose `{purpose[:40]}` is not supported. Supported: {known}.", param="purpose")
    return purpose


def shown_name(name: str) -> str:
    """Return the last part of a path without control characters, at most 255 characters."""
    last = name.replace("\\", "/").rpartition("/")[2]
    seen = "".join(character for character in last if unicodedata.category(character)[0] != "C").strip()
    return (NAME_OF_NONE if seen in {"", ".", ".."} else seen)[:MAX_NAME]


def check_name(purpose: str, filename: str, *, param: str = "file") -> None:
    """Raise StorageError if the purpose requires another kind of file."""
    if purpose in _LINES and not filename.lower().endswith(".jsonl"):
        raise StorageError(
            f"Files with the purpose `{purpose}` must contain JSON lines and have a name that ends in .jsonl, "
            f"got `{filename[:80]}`.",
            param=param,
            code="invalid_file_format",
        )


def check_content(purpose: str, filename: str, beginning: bytes, *, param: str = "file") -> None:
    """Raise StorageError if the name or the first bytes do not match the purpose."""
    check_name(purpose, filename, param=param)
    if purpose == Purpose.VISION and not is_image(beginning):
        raise StorageError(
            "Files with the purpose `vision` must be PNG, JPEG, GIF or WebP images.",
            param=param,
            code="invalid_file_format",
        )


def is_image(beginning: bytes) -> bool:
    return any(beginning[place : place + len(mark)] == mark for mark, place in _IMAGES.items())


def lifetime(purpose: str, expires_after_s: int | None) -> timedelta | None:
    """Return how long a file is kept; None means until it is deleted."""
    if expires_after_s is not None:
        return timedelta(seconds=expires_after_s)
    return BATCH_LIFETIME if purpose in {Purpose.BATCH, Purpose.BATCH_OUTPUT} else None


_LOCK = 0x6D694C51  # "miLQ": the first half of the advisory lock's key; the second half is the owner
ANONYMOUS = 0  # owner of the files of requests without a key; no user has this id


def used_bytes(owner_id: int | None) -> int:
    """Return the bytes of the owner's files and of the parts of pending uploads; files being written do not count."""
    files = StoredFile.objects.of(owner_id).current()
    parts = UploadPart.objects.filter(upload__owner_id=owner_id, upload__status=Upload.Status.PENDING)
    return sum(rows.aggregate(total=Sum("size"))["total"] or 0 for rows in (files, parts))


def check_quota(owner_id: int | None, num_bytes: int, *, param: str = "file") -> None:
    """Raise StorageQuotaError if ``num_bytes`` more bytes exceed the quota.

    In a transaction, other requests of the owner wait until it ends. Parts of an upload count when they arrive, so the
    file composed of them adds nothing.
    """
    quota: int = settings.MILLM_STORAGE_QUOTA_BYTES
    if not quota:
        return
    if connection.in_atomic_block:
        _lock(owner_id)
    used = used_bytes(owner_id)
    if used + num_bytes > quota:
        raise StorageQuotaError(
            f"Your storage quota is {quota} bytes. Your files use {used} and this one needs {num_bytes}. Delete files, "
            "or ask the operator for more space (MILLM_STORAGE_QUOTA_BYTES).",
            param=param,
        )


def _lock(owner_id: int | None) -> None:
    """Lock the owner's quota until the transaction ends.

    Owners with large ids may share a lock, which only makes them wait for each other.
    """
    key = (owner_id if owner_id is not None else ANONYMOUS) % 2**31
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_LOCK, key])


def keep_file(
    *,
    writer: BlobWriter,
    filename: str,
    purpose: str,
    owner_id: int | None,
    expires_after_s: int | None = None,
    counted: int = 0,
) -> StoredFile:
    """Store the written blob as a file of ``owner_id``. If the row cannot be written, the blob is deleted.

    ``counted`` of its bytes already count against the quota. Raise StorageQuotaError if the rest exceeds it.
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
    """Return the file. Raise ObjectNotFoundError if it does not exist, has expired or belongs to another user."""
    return _found(StoredFile.objects.of(owner_id).current(), public_id, param)


def find_linked_file(public_id: str) -> StoredFile:
    """Return the file of any owner, for a request whose link allows it. Raise ObjectNotFoundError."""
    return _found(StoredFile.objects.current(), public_id, "file_id")


def _found(files: QuerySet[StoredFile], public_id: str, param: str) -> StoredFile:
    found = None
    if len(public_id) <= MAX_LENGTH and "\0" not in public_id:
        found = files.filter(public_id=public_id).first()
    if found is None:
        raise not_found("file", public_id, code="file_not_found", param=param)
    return found


def delete_files(*, files: QuerySet[StoredFile]) -> int:
    """Delete the files and their chunks in vector stores, and return how many files there were."""
    with transaction.atomic():
        blobs = list(files.select_for_update().values_list("blob", flat=True))
        StoredFile.objects.filter(blob__in=blobs).delete()
        transaction.on_commit(lambda: delete_blobs(blobs))
    return len(blobs)


def delete_blobs(names: list[str]) -> None:
    store = BlobStore.from_settings()
    for name in names:
        store.delete(name)
