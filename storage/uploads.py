"""Create uploads, add parts, complete them into a file, and cancel them."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.db.models import Sum

from core.ids import MAX_LENGTH
from storage.blobs import BlobStore, BlobWriter
from storage.errors import StorageError, not_found
from storage.files import check_content, check_name, check_quota, delete_blobs, keep_file
from storage.models import Upload, UploadPart

MAX_PARTS = 10_000


def begin_upload(
    *, owner_id: int | None, filename: str, purpose: str, mime_type: str, size: int, expires_after_s: int | None
) -> Upload:
    check_name(purpose, filename, param="filename")
    check_quota(owner_id, size, param="bytes")
    return Upload.objects.create(
        owner_id=owner_id,
        filename=filename,
        purpose=purpose,
        mime_type=mime_type,
        size=size,
        expires_after_s=expires_after_s,
    )


def find_upload(public_id: str, *, owner_id: int | None) -> Upload:
    return _find(public_id, owner_id, is_locking=False)


def add_part(*, public_id: str, owner_id: int | None, writer: BlobWriter) -> UploadPart:
    """Store the written blob as a part. Raise StorageError if the upload is not pending or would become too large."""
    with transaction.atomic():
        upload = _find(public_id, owner_id, is_locking=True)
        _check_pending(upload)
        sent = upload.parts.aggregate(total=Sum("size"))["total"] or 0
        if sent + writer.size > upload.size:
            raise StorageError(
                f"The part has {writer.size} bytes, but only {upload.size - sent} of {upload.size} bytes are missing.",
                param="data",
            )
        if upload.parts.count() >= MAX_PARTS:
            raise StorageError(f"An upload must have at most {MAX_PARTS} parts. Send larger parts.", param="data")
        check_quota(owner_id, writer.size, param="data")
        blob = writer.keep()
        try:
            return upload.parts.create(size=blob.size, blob=blob.name)
        except BaseException:
            BlobStore.from_settings().delete(blob.name)
            raise


def complete_upload(*, public_id: str, owner_id: int | None, part_ids: Sequence[str], md5: str | None) -> Upload:
    """Join the parts, in the given order, into a file. If their size or MD5 is wrong, the upload stays pending."""
    store = BlobStore.from_settings()
    with transaction.atomic(), store.writing() as writer:
        upload = _find(public_id, owner_id, is_locking=True)
        _check_pending(upload)
        store.copy(_ordered_blobs(upload, part_ids), writer)
        _check_result(upload, writer, md5)
        upload.file = keep_file(
            writer=writer,
            filename=upload.filename,
            purpose=upload.purpose,
            owner_id=owner_id,
            expires_after_s=upload.expires_after_s,
            counted=upload.parts.aggregate(total=Sum("size"))["total"] or 0,
        )
        upload.status = Upload.Status.COMPLETED
        upload.save(update_fields=["file", "status"])
        drop_parts(upload)
    return upload


def cancel_upload(*, public_id: str, owner_id: int | None) -> Upload:
    with transaction.atomic():
        upload = _find(public_id, owner_id, is_locking=True)
        _check_pending(upload)
        upload.status = Upload.Status.CANCELLED
        upload.save(update_fields=["status"])
        drop_parts(upload)
    return upload


def drop_parts(upload: Upload) -> None:
    """Delete the parts of an upload that has ended; their blobs are deleted on commit."""
    blobs = list(upload.parts.values_list("blob", flat=True))
    upload.parts.all().delete()
    transaction.on_commit(lambda: delete_blobs(blobs))


def _find(public_id: str, owner_id: int | None, *, is_locking: bool) -> Upload:
    found = None
    if len(public_id) <= MAX_LENGTH and "\0" not in public_id:
        rows = Upload.objects.of(owner_id).filter(public_id=public_id)
        found = (rows.select_for_update() if is_locking else rows).first()
    if found is None:
        raise not_found("upload", public_id, code="upload_not_found", param="upload_id")
    return found


def _check_pending(upload: Upload) -> None:
    if upload.status_now != Upload.Status.PENDING:
        raise StorageError(f"The upload is {upload.status_now}. Create a new one.", code="upload_not_pending")


def _ordered_blobs(upload: Upload, part_ids: Sequence[str]) -> list[str]:
    blobs = dict(upload.parts.values_list("public_id", "blob"))
    unknown = [one for one in part_ids if one not in blobs]
    if unknown:
        raise StorageError(f"The upload has no part `{unknown[0][:64]}`.", param="part_ids")
    if len(set(part_ids)) != len(part_ids):
        raise StorageError("`part_ids` must not contain a part twice.", param="part_ids")
    return [blobs[one] for one in part_ids]


def _check_result(upload: Upload, writer: BlobWriter, md5: str | None) -> None:
    if writer.size != upload.size:
        raise StorageError(
            f"The parts must have {upload.size} bytes in total, as announced; got {writer.size}.",
            param="part_ids",
            code="upload_size_mismatch",
        )
    if md5 is not None and writer.md5 != md5.lower():
        message = f"`md5` must be the MD5 of the joined parts, {writer.md5}; got {md5[:64]}."
        raise StorageError(message, param="md5", code="md5_mismatch")
    check_content(upload.purpose, upload.filename, writer.beginning, param="part_ids")
