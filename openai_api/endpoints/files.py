"""/v1/files and /v1/uploads: create, list, retrieve, download and delete files, and upload them in parts."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http.response import HttpResponseBase
from pydantic import ValidationError

from core.database import in_database, in_thread
from openai_api.endpoints.pagination import page_of
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.http.file_response import download
from openai_api.http.file_uploads import Form, check_multipart, read_form
from openai_api.http.signed_links import is_signed
from openai_api.schemas.base import api_error
from openai_api.schemas.files import (
    ExpiresAfter,
    FileBody,
    FileDeletedBody,
    FileQuery,
    UploadBody,
    UploadCompletion,
    UploadPartBody,
    UploadRequest,
)
from storage.blobs import BlobStore
from storage.errors import FileTooLargeError
from storage.files import (
    check_content,
    check_purpose,
    check_quota,
    delete_files,
    find_file,
    find_linked_file,
    keep_file,
    shown_name,
)
from storage.models import StoredFile, Upload, UploadPart
from storage.uploads import add_part, begin_upload, cancel_upload, complete_upload, find_upload

EXPIRY_FIELDS = {"expires_after[anchor]": "anchor", "expires_after[seconds]": "seconds"}


async def create_file(call: Call) -> HttpResponseBase:
    check_multipart(call)
    file = await in_thread(take_file, call)
    call.parameters = {"file": file.public_id, "purpose": file.purpose, "bytes": file.size}
    return json_response(file_body(file))


async def list_files(call: Call) -> HttpResponseBase:
    query = FileQuery.parse(call.request.GET)

    def read() -> dict[str, Any]:
        rows = StoredFile.objects.of(call.owner_id).current()
        rows = rows if query.purpose is None else rows.filter(purpose=query.purpose)
        return page_of(rows, query).body(file_body)

    return json_response(await in_database(read))


async def get_file(call: Call, file_id: str) -> HttpResponseBase:
    return json_response(file_body(await in_database(find_file, file_id, owner_id=call.owner_id)))


async def get_file_content(call: Call, file_id: str) -> HttpResponseBase:
    if is_signed(call.request, file_id):
        return await download(call, await in_database(find_linked_file, file_id))
    return await download(call, await in_database(find_file, file_id, owner_id=call.owner_id))


async def delete_file(call: Call, file_id: str) -> HttpResponseBase:
    def delete() -> None:
        file = find_file(file_id, owner_id=call.owner_id)
        delete_files(files=StoredFile.objects.filter(pk=file.pk))

    await in_database(delete)
    body: FileDeletedBody = {"id": file_id, "object": "file", "deleted": True}
    return json_response(body)


def take_file(call: Call) -> StoredFile:
    """Store the form's file. Reads disks, so it must not run on the event loop."""
    check_quota(call.owner_id, 1)  # before anything is written; the size is checked at the end
    with BlobStore.from_settings().writing() as writer:
        form = read_form(call.request, writer, name="file", max_bytes=settings.MILLM_MAX_FILE_BYTES)
        if "purpose" not in form.fields:
            raise invalid("`purpose` is required.", param="purpose", code="missing_required_parameter")
        purpose, filename = check_purpose(form.fields["purpose"]), shown_name(form.filename)
        check_content(purpose, filename, writer.beginning)
        return keep_file(
            writer=writer,
            filename=filename,
            purpose=purpose,
            owner_id=call.owner_id,
            expires_after_s=expiry_of(form),
        )


def expiry_of(form: Form) -> int | None:
    """Return the expiry in seconds. Forms carry objects as ``expires_after[seconds]`` and numbers as text."""
    given = {name: form.fields[field] for field, name in EXPIRY_FIELDS.items() if field in form.fields}
    if not given:
        return None
    try:
        return ExpiresAfter.model_validate(given, strict=False).seconds
    except ValidationError as error:
        found = api_error(error)
        raise found.with_param(f"expires_after[{found.param}]") from None


def file_body(file: StoredFile) -> FileBody:
    return {
        "id": file.public_id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created_at.timestamp()),
        "expires_at": int(file.expires_at.timestamp()) if file.expires_at is not None else None,
        "filename": file.filename,
        "purpose": file.purpose,  # type: ignore[typeddict-item]  # its choices
        "status": "processed",
        "status_details": None,
    }


MAX_PART_BYTES = 64 * 2**20


async def create_upload(call: Call) -> HttpResponseBase:
    request = call.read(UploadRequest)
    return json_response(upload_body(await in_thread(begin, call, request)))


async def create_part(call: Call, upload_id: str) -> HttpResponseBase:
    check_multipart(call)
    await in_database(find_upload, upload_id, owner_id=call.owner_id)
    return json_response(part_body(await in_thread(take_part, call, upload_id)))


async def complete_file_upload(call: Call, upload_id: str) -> HttpResponseBase:
    request = call.read(UploadCompletion)
    upload = await in_thread(
        complete_upload, public_id=upload_id, owner_id=call.owner_id, part_ids=request.part_ids, md5=request.md5
    )
    return json_response(upload_body(upload))


async def cancel_file_upload(call: Call, upload_id: str) -> HttpResponseBase:
    return json_response(upload_body(await in_database(cancel_upload, public_id=upload_id, owner_id=call.owner_id)))


def begin(call: Call, request: UploadRequest) -> Upload:
    purpose, filename = check_purpose(request.purpose), shown_name(request.filename)
    if request.bytes > settings.MILLM_MAX_FILE_BYTES:
        raise FileTooLargeError(
            f"`bytes` must be at most {settings.MILLM_MAX_FILE_BYTES}, got {request.bytes}.", param="bytes"
        )
    return begin_upload(
        owner_id=call.owner_id,
        filename=filename,
        purpose=purpose,
        mime_type=request.mime_type,
        size=request.bytes,
        expires_after_s=request.expires_after.seconds if request.expires_after else None,
    )


def take_part(call: Call, upload_id: str) -> UploadPart:
    with BlobStore.from_settings().writing() as writer:
        limit = min(MAX_PART_BYTES, settings.MILLM_MAX_FILE_BYTES)
        read_form(call.request, writer, name="data", max_bytes=limit)
        return add_part(public_id=upload_id, owner_id=call.owner_id, writer=writer)


def upload_body(upload: Upload) -> UploadBody:
    return {
        "id": upload.public_id,
        "object": "upload",
        "bytes": upload.size,
        "created_at": int(upload.created_at.timestamp()),
        "expires_at": int(upload.expires_at.timestamp()),
        "filename": upload.filename,
        "purpose": upload.purpose,  # type: ignore[typeddict-item]  # its choices
        "status": upload.status_now,  # type: ignore[typeddict-item]  # its choices
        "file": file_body(upload.file) if upload.file is not None else None,
    }


def part_body(part: UploadPart) -> UploadPartBody:
    return {
        "id": part.public_id,
        "object": "upload.part",
        "created_at": int(part.created_at.timestamp()),
        "upload_id": part.upload.public_id,
    }
