"""How much an owner's files may have together."""

from __future__ import annotations

from django.conf import settings
from django.db import connection
from django.db.models import Sum

from storage.errors import StorageQuotaError
from storage.models import StoredFile, Upload, UploadPart

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
