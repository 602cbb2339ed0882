"""/v1/files and /v1/uploads: requests and answers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from openai_api.schemas.base import NO_NUL, ListQuery, Part, RequestSchema

HOUR, MONTH = 3_600, 30 * 86_400
MAX_LISTED = 10_000

FilePurpose = Literal["assistants", "assistants_output", "batch", "batch_output", "fine-tune", "user_data", "vision"]


class ExpiresAfter(Part):
    anchor: Literal["created_at"]
    seconds: int = Field(ge=HOUR, le=MONTH)


class UploadRequest(RequestSchema):
    bytes: int = Field(ge=1, description="Size of the file, at most MILLM_MAX_FILE_BYTES.")
    filename: str = Field(min_length=1, max_length=4_096, pattern=NO_NUL)
    mime_type: str = Field(min_length=1, max_length=255, pattern=NO_NUL)
    purpose: str
    expires_after: ExpiresAfter | None = None


class UploadCompletion(RequestSchema):
    part_ids: list[str] = Field(min_length=1, max_length=10_000, description="In the order of the file.")
    md5: str | None = Field(None, max_length=64, description="MD5 of the whole file, in hexadecimal.")


class FileQuery(ListQuery):
    DEFAULT_LIMIT: ClassVar[int] = MAX_LISTED

    limit: int | None = Field(None, ge=1, le=MAX_LISTED)
    purpose: str | None = Field(None, max_length=40, pattern=NO_NUL)


class FileBody(TypedDict):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: FilePurpose
    status: Literal["processed"]
    status_details: None


class FileListBody(TypedDict):
    object: Literal["list"]
    data: list[FileBody]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeletedBody(TypedDict):
    id: str
    object: Literal["file"]
    deleted: bool


class UploadBody(TypedDict):
    id: str
    object: Literal["upload"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: FilePurpose
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: FileBody | None


class UploadPartBody(TypedDict):
    id: str
    object: Literal["upload.part"]
    created_at: int
    upload_id: str
