"""Uploads: files in parts."""

from __future__ import annotations

from django.conf import settings
from django.http.response import HttpResponseBase

from openai_api.call import Call
from openai_api.endpoint import json_response
from openai_api.schemas.files import UploadBody, UploadCompletion, UploadPartBody, UploadRequest
from openai_api.services.files import file_body
from openai_api.services.multipart import check_multipart, read_form
from storage.blobs import BlobStore
from storage.errors import FileTooLargeError
from storage.file_rules import check_purpose, shown_name
from storage.models import Upload, UploadPart
from storage.sweep import sweep_sometimes
from storage.threads import in_database, in_thread
from storage.uploads import add_part, begin_upload, cancel_upload, complete_upload, find_upload

MAX_PART_BYTES = 64 * 2**20


async def create_upload(call: Call) -> HttpResponseBase:
    wanted = call.read(UploadRequest)
    return json_response(upload_body(await in_thread(begin, call, wanted)))


async def create_part(call: Call, upload_id: str) -> HttpResponseBase:
    check_multipart(call)
    await in_database(find_upload, upload_id, owner_id=call.owner_id)
    return json_response(part_body(await in_thread(take_part, call, upload_id)))


async def finish_upload(call: Call, upload_id: str) -> HttpResponseBase:
    wanted = call.read(UploadCompletion)
    upload = await in_thread(
        complete_upload, public_id=upload_id, owner_id=call.owner_id, part_ids=wanted.part_ids, md5=wanted.md5
    )
    return json_response(upload_body(upload))


async def give_up_upload(call: Call, upload_id: str) -> HttpResponseBase:
    return json_response(upload_body(await in_database(cancel_upload, public_id=upload_id, owner_id=call.owner_id)))


def begin(call: Call, wanted: UploadRequest) -> Upload:
    sweep_sometimes()
    purpose, filename = check_purpose(wanted.purpose), shown_name(wanted.filename)
    if wanted.bytes > settings.MILLM_MAX_FILE_BYTES:
        raise FileTooLargeError(
            f"A file has at most {settings.MILLM_MAX_FILE_BYTES} bytes, not {wanted.bytes}.", param="bytes"
        )
    return begin_upload(
        owner_id=call.owner_id,
        filename=filename,
        purpose=purpose,
        mime_type=wanted.mime_type,
        size=wanted.bytes,
        expires_after_s=wanted.expires_after.seconds if wanted.expires_after else None,
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
