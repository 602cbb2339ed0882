"""Files of clients: rules for their names and purposes, quota, creation and deletion."""

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
BATCH_LIFETIME = timedelta(days=30)  # of files for and by batches that say nothing else
MAX_NAME = 255
NAME_OF_NONE = "file"
_LINES = {Purpose.BATCH, Purpose.FINE_TUNE}
_IMAGES = {b"\x89PNG\r\n\x1a\n": 0, b"\xff\xd8\xff": 0, b"GIF87a": 0, b"GIF89a": 0, b"WEBP": 8}  # marks and places


def check_purpose(purpose: str) -> str:
    if purpose not in CLIENT_PURPOSES:
        known = ", ".join(sorted(CLIENT_PURPOSES))
        raise StorageError(f"The purpose “{purpose[:40]}” is not supported. Choose one of {known}.", param="purpose")
    return purpose


def shown_name(name: str) -> str:
    """The last part of a path, in characters that can be seen and sent in a header, at most 255 of them."""
    last = name.replace("\\", "/").rpartition("/")[2]
    seen = "".join(character for character in last if unicodedata.category(character)[0] != "C").strip()
    return (NAME_OF_NONE if seen in {"", ".", ".."} else seen)[:MAX_NAME]


def check_name(purpose: str, filename: str, *, param: str = "file") -> None:
    """Raises StorageError where the purpose asks for files of another kind."""
    if purpose in _LINES and not filename.lower().endswith(".jsonl"):
        raise StorageError(
            f"A file for “{purpose}” holds JSON lines and its name ends in .jsonl, not “{filename[:80]}”.",
            param=param,
            code="invalid_file_format",
        )


def check_content(purpose: str, filename: str, beginning: bytes, *, param: str = "file") -> None:
    """Likewise, with the file's first bytes at hand."""
    check_name(purpose, filename, param=param)
    if purpose == Purpose.VISION and not is_image(beginning):
        raise StorageError(
            "A file for “vision” is a PNG, JPEG, GIF or WebP image.", param=param, code="invalid_file_format"
        )


def is_image(beginning: bytes) -> bool:
    return any(beginning[place : place + len(mark)] == mark for mark, place in _IMAGES.items())


def lifetime(purpose: str, expires_after_s: int | None) -> timedelta | None:
    """None: until it is deleted."""
    if expires_after_s is not None:
        return timedelta(seconds=expires_after_s)
    return BATCH_LIFETIME if purpose in {Purpose.BATCH, Purpose.BATCH_OUTPUT} else None


_LOCK = 0x6D694C51  # "miLQ": the first half of an advisory lock's key, the owner is the second
NOBODY = 0  # the owner of what came without a key; no user has this number


def used_bytes(owner_id: int | None) -> int:
    """Of files, and of the parts of uploads that are not over; half-written files do not count yet."""
    files = StoredFile.objects.of(owner_id).current()
    parts = UploadPart.objects.filter(upload__owner_id=owner_id, upload__status=Upload.Status.PENDING)
    return sum(rows.aggregate(total=Sum("size"))["total"] or 0 for rows in (files, parts))


def check_quota(owner_id: int | None, coming: int, *, param: str = "file") -> None:
    """Raises StorageQuotaError where ``coming`` bytes more are too many.

    In a transaction nobody else can use the same room before it ends. Parts of an upload count while they come, so
    the file that they make is no more than they were.
    """
    quota: int = settings.MILLM_STORAGE_QUOTA_BYTES
    if not quota:
        return
    if connection.in_atomic_block:
        _lock(owner_id)
    used = used_bytes(owner_id)
    if used + coming > quota:
        raise StorageQuotaError(
            f"Your files have {used} bytes; with {coming} more they would have more than {quota}. Delete some, or ask "
            "the operator for more room (MILLM_STORAGE_QUOTA_BYTES).",
            param=param,
        )


def _lock(owner_id: int | None) -> None:
    """Until the end of the transaction. Numbers above what the lock takes share one: they only wait for one another."""
    key = (owner_id if owner_id is not None else NOBODY) % 2**31
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
