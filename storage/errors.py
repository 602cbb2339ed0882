"""Errors of storage, with the status, code and field that clients see."""

from __future__ import annotations

from core.errors import MillmError


class StorageError(MillmError):
    code = "invalid_value"


class ObjectNotFoundError(StorageError):
    """There is no such object, or it is another owner's: nobody can tell the difference."""

    status = 404


class FileTooLargeError(StorageError):
    status = 413
    code = "file_too_large"


class StorageQuotaError(StorageError):
    """The owner has used up what one may keep."""

    status = 413
    code = "storage_quota_exceeded"


class StorageFullError(StorageError):
    """The disk has no room left, or would soon have none for the database beside."""

    status = 507
    code = "insufficient_storage"


class StorageConflictError(StorageError):
    """The object is in a state in which this cannot be done."""

    status = 409


class ExtractionError(StorageError):
    """A document has no text that can be read. ``code`` is the one of the file in its vector store."""

    code: str = "invalid_file"


def not_found(kind: str, public_id: str, *, code: str, param: str) -> ObjectNotFoundError:
    return ObjectNotFoundError(f"There is no {kind} “{public_id[:64]}”.", param=param, code=code)
