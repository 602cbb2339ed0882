"""Errors of stored objects, with the status, code and field that clients see."""

from __future__ import annotations

from core.errors import MillmError


class StorageError(MillmError):
    code = "invalid_value"


class ObjectNotFoundError(StorageError):
    """The object does not exist or belongs to another user; clients cannot distinguish the two."""

    status = 404


class FileTooLargeError(StorageError):
    status = 413
    code = "file_too_large"


class StorageQuotaError(StorageError):
    """The owner's storage quota is used up."""

    status = 413
    code = "storage_quota_exceeded"


class StorageFullError(StorageError):
    """The disk is full, or has only the space that is reserved for the database."""

    status = 507
    code = "insufficient_storage"


class StorageUnreachableError(StorageError):
    """The file system of MILLM_FILES_URL does not answer, or refuses."""

    status = 503
    code = "storage_unavailable"


class StorageConflictError(StorageError):
    """The state of the object does not allow this action."""

    status = 409


class ExtractionError(StorageError):
    """The text of a document cannot be read. ``code`` is the error code of the file in its vector store."""

    code: str = "invalid_file"


def not_found(kind: str, public_id: str, *, code: str, param: str) -> ObjectNotFoundError:
    return ObjectNotFoundError(f"The {kind} `{public_id[:64]}` does not exist.", param=param, code=code)
