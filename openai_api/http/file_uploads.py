"""File uploads: which routes accept them, the check of the key before the body, and the multipart parser."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import BadRequest, SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler, StopUpload
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, QueryDict
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.http.request import UnreadablePostError
from django.utils.http import parse_header_parameters

from core.errors import MillmError, quote
from openai_api import V1_ROOTS
from openai_api.http.call import Call
from openai_api.http.errors import forbidden, invalid, unavailable, unsupported_media_type
from openai_api.keys.authentication import current_keys, needs_no_key, require_key
from storage.blobs import BlobStore, BlobWriter
from storage.errors import FileTooLargeError

BLOCK = 2**18


@dataclass
class Form:
    """``fields`` are the text fields of the form, ``filename`` is as sent by the client."""

    filename: str
    fields: Mapping[str, str] = field(default_factory=dict)


class _ToBlob(FileUploadHandler):
    """Write the file of the field ``name``; any other file ends the upload."""

    chunk_size = BLOCK

    def __init__(self, writer: BlobWriter, name: str, max_bytes: int) -> None:
        super().__init__()
        self.writer = writer
        self.name = name
        self.max_bytes = max_bytes
        self.filename: str | None = None
        self.problem: Exception | None = None

    def new_file(self, field_name: str, file_name: str, *args: Any, **kwargs: Any) -> None:
        super().new_file(field_name, file_name, *args, **kwargs)
        if field_name != self.name:
            self._stop(
                invalid(f"`{quote(field_name)}` must not be a file. Send the file as `{self.name}`.", param=self.name)
            )
        if self.filename is not None:
            self._stop(invalid(f"`{self.name}` must be a single file, got several.", param=self.name))
        self.filename = file_name

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        if self.writer.size + len(raw_data) > self.max_bytes:
            message = f"`{self.name}` must have at most {self.max_bytes} bytes."
            self._stop(FileTooLargeError(message, param=self.name))
        self.writer.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile:  # type: ignore[type-arg]  # it takes none at run time
        return UploadedFile(file=None, name=self.filename, size=file_size)

    def _stop(self, problem: Exception) -> None:
        self.problem = problem
        raise StopUpload(connection_reset=True)


class _Body:
    """A form's body up to its final boundary. Django's parser accepts a truncated body as complete, and reads past the
    boundary.
    """

    def __init__(self, request: HttpRequest) -> None:
        boundary = str(parse_header_parameters(request.META.get("CONTENT_TYPE", ""))[1].get("boundary", ""))
        self._mark = b"\n--" + boundary.encode("ascii", "replace") + b"--"
        self._request = request
        self._tail = b"\n"  # end of the data read so far: a boundary may start the body or span two blocks
        self.is_complete = False

    def read(self, size: int) -> bytes:
        if self.is_complete:
            return b""
        block: bytes = self._request.read(size)
        seen = self._tail + block
        place = seen.find(self._mark)
        if place >= 0:
            self.is_complete = True
            return block[: place + len(self._mark) - len(self._tail)]
        self._tail = seen[-len(self._mark) :]
        return block


def check_multipart(call: Call) -> None:
    """Require a multipart form. Raises MillmError 415, and 403 for a browser's cross-site request.

    Browsers send forms across sites without a preflight, and requests without a key are trusted by their address.
    """
    request = call.request
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise unsupported_media_type("Send the body uncompressed.", code="unsupported_content_encoding")
    if (request.content_type or "").lower() != "multipart/form-data":
        raise unsupported_media_type(
            f"Content-Type must be multipart/form-data, got `{quote(request.content_type or '')}`."
        )
    origin = request.headers.get("Origin")
    if call.key is None and origin is not None and urlsplit(origin).netloc != request.get_host():
        raise forbidden("Pages of other sites can't upload files without an API key.", code="permission_denied")


def read_form(request: HttpRequest, writer: BlobWriter, *, name: str, max_bytes: int) -> Form:
    """Write the file of the field ``name``. Raises MillmError 400 and StorageError. Reads disks, so not for the event
    loop.
    """
    handler = _ToBlob(writer, name, max_bytes)
    fields = _parse(request, handler)
    if handler.filename is None:
        raise _missing(name)
    return Form(handler.filename, {key: str(fields[key]) for key in fields})


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file of a form, on the server's disk until the request ends."""

    filename: str
    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class FilesForm:
    """A form with several files. Arrays, as ``image[]`` or as a repeated ``image``, are under their plain name."""

    files: Mapping[str, Sequence[SentFile]]
    fields: Mapping[str, Sequence[str]]


def read_files(request: HttpRequest, stack: ExitStack, *, most: Mapping[str, int], max_bytes: int) -> FilesForm:
    """Write the files of a form to disk. ``most``: the number of files by field. They are deleted with ``stack``.

    Raises MillmError 400, 413 and StorageError. Reads disks, so not for the event loop.
    """
    handler = _ToFiles(BlobStore.from_settings(), stack, most, max_bytes)
    fields = _parse(request, handler)
    lists: dict[str, list[str]] = {}
    for key, values in fields.lists():
        lists.setdefault(plain_name(key), []).extend(str(value) for value in values)
    return FilesForm(handler.files, lists)


def plain_name(field_name: str) -> str:
    return field_name.removesuffix("[]")


class _ToFiles(FileUploadHandler):
    """Write each file of the allowed fields to a file of its own; any other file ends the upload."""

    chunk_size = BLOCK

    def __init__(self, store: BlobStore, stack: ExitStack, most: Mapping[str, int], max_bytes: int) -> None:
        super().__init__()
        self.files: dict[str, list[SentFile]] = {}
        self.problem: Exception | None = None
        self._store = store
        self._stack = stack
        self._most = most
        self._max_bytes = max_bytes
        self._writer: BlobWriter | None = None
        self._name = ""
        self._filename = ""

    def new_file(self, field_name: str, file_name: str, *args: Any, **kwargs: Any) -> None:
        super().new_file(field_name, file_name, *args, **kwargs)
        self._name, self._filename = plain_name(field_name), file_name
        most = self._most.get(self._name, 0)
        if most == 0:
            self._stop(invalid(f"`{quote(field_name)}` must not be a file.", param=quote(field_name)))
        if len(self.files.get(self._name, ())) >= most:
            self._stop(invalid(f"`{self._name}` must have at most {most} files.", param=self._name))
        self._writer = self._stack.enter_context(self._store.writing())

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        assert self._writer is not None
        if self._writer.size + len(raw_data) > self._max_bytes:
            message = f"`{self._name}` must have at most {self._max_bytes} bytes."
            self._stop(FileTooLargeError(message, param=self._name))
        self._writer.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile:  # type: ignore[type-arg]  # it takes none at run time
        assert self._writer is not None
        self.files.setdefault(self._name, []).append(SentFile(self._filename, self._writer.flushed(), file_size))
        return UploadedFile(file=None, name=self._filename, size=file_size)

    def _stop(self, problem: Exception) -> None:
        self.problem = problem
        raise StopUpload(connection_reset=True)


def _parse(request: HttpRequest, handler: _ToBlob | _ToFiles) -> QueryDict:
    """Read the form with the handler and return its text fields. Raises MillmError 400 and the handler's problem."""
    body = _Body(request)
    try:
        parser = MultiPartParser(request.META, body, [handler], request.encoding)  # type: ignore[arg-type]  # it reads
        fields, _ = parser.parse()
    except MultiPartParserError as error:
        raise invalid(
            f"The body is not a valid multipart form: {quote(str(error))}.", code="invalid_multipart"
        ) from None
    except (BadRequest, SuspiciousOperation) as error:
        raise invalid(f"The form has too many parts or fields: {quote(str(error))}", code="invalid_multipart") from None
    except UnreadablePostError:
        raise invalid("The connection closed before the end of the body.", code="invalid_multipart") from None
    if handler.problem is not None:
        raise handler.problem
    if not body.is_complete:
        raise invalid("The multipart body is incomplete: it ends before the last boundary.", code="invalid_multipart")
    return fields


def _missing(name: str) -> MillmError:
    message = f"`{name}` is required and must be a file with a name."
    return invalid(message, param=name, code="missing_required_parameter")


Header = tuple[bytes, bytes]


def upload_refusal(headers: Iterable[Header], peer: str, path: str = "") -> MillmError | None:
    """Return the error for a request that may not upload; ``peer`` is the address of the connection.

    Uploads to /api need a key, also from the same machine and in a console session: their bodies may be large.
    """
    request = _request(headers, peer)
    try:
        if _MANAGED.fullmatch(path):
            if not require_key(request, current_keys()).may_manage:
                raise forbidden("This key cannot access /api. Add the scope to the key.", code="scope_required")
        elif not needs_no_key(request):
            require_key(request, current_keys())
    except MillmError as refusal:
        return refusal
    except (OperationalError, InterfaceError):
        return unavailable("The database is not available.", code="database_unavailable")
    return None


def _request(headers: Iterable[Header], peer: str) -> HttpRequest:
    """Return a request with as much as authentication needs. Repeated headers are joined, as in the view."""
    request = HttpRequest()
    request.META["REMOTE_ADDR"] = peer
    for name, value in headers:
        key = f"HTTP_{name.decode('latin-1').upper().replace('-', '_')}"
        text = value.decode("latin-1")
        request.META[key] = f"{request.META[key]},{text}" if key in request.META else text
    return request


FORM_BYTES = 2**20  # allowance for a multipart body besides its file
_V1 = rf"(?:{'|'.join(V1_ROOTS)}|/openai(?:/deployments/.+)?)"
_UPLOADS = re.compile(rf"{_V1}/(files|uploads/[^/]+/parts)/?")
_MEDIA = re.compile(rf"{_V1}/(audio/(transcriptions|translations|voices)|images/(edits|variations)|videos)/?")
_MANAGED = re.compile(r"/api/(saes/upload|saes/[0-9]{1,18}/labels|corpora)")


def accepts_files(path: str) -> bool:
    return any(routes.fullmatch(path) for routes in (_UPLOADS, _MEDIA, _MANAGED))


def body_limit(path: str) -> int:
    """Return the maximum body size of the route."""
    limit: int = settings.MILLM_MAX_BODY_BYTES
    if _UPLOADS.fullmatch(path) or _MANAGED.fullmatch(path):
        return max(limit, settings.MILLM_MAX_FILE_BYTES + FORM_BYTES)
    if _MEDIA.fullmatch(path):
        return max(limit, settings.MILLM_MAX_MEDIA_BYTES + FORM_BYTES)
    return limit
