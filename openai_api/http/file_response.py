"""Send a file, whole or a range, one block at a time as the client reads."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import IO
from urllib.parse import quote as percent_encode

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone

from core.database import in_thread
from core.errors import MillmError
from openai_api.http.call import Call
from openai_api.http.sse import EventSource
from storage.blobs import BlobStore
from storage.models import StoredFile

BLOCK = 2**17
OUTPUT = StoredFile.Purpose.ASSISTANTS_OUTPUT
IMAGE_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}  # by the end of the name
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes from ``start`` to before ``end``."""

    start: int
    end: int
    is_partial: bool


async def download(call: Call, file: StoredFile) -> HttpResponseBase:
    """Return the file or the requested range. Raises MillmError 416, and 404 when the content is gone."""
    span = chosen_span(call, file)
    opened = await in_thread(open_blob, file)
    if call.request.method == "HEAD":
        opened.close()
        response: HttpResponseBase = HttpResponse()
    else:
        sending = Sending(call, opened, span)
        response = StreamingHttpResponse(EventSource(sending.blocks(), sending.close))
    response.status_code = 206 if span.is_partial else 200
    for name, value in file_headers(file, span).items():
        response.headers[name] = value
    return response


def open_blob(file: StoredFile) -> IO[bytes]:
    try:
        return BlobStore.from_settings().path(file.blob).open("rb")
    except FileNotFoundError:
        raise MillmError(
            "The content of the file no longer exists.", status=404, code="file_not_found", param="file_id"
        ) from None


def chosen_span(call: Call, file: StoredFile) -> Span:
    """Return the requested range; the whole file without one, for several, or for another version."""
    whole = Span(0, file.size, is_partial=False)
    found = _RANGE.fullmatch(call.request.headers.get("Range", "").strip().replace(" ", ""))
    condition = call.request.headers.get("If-Range")
    if found is None or found.group(0) == "bytes=-" or condition not in {None, etag(file)}:
        return whole
    first, last = found.groups()
    if not first:
        start, end = max(0, file.size - int(last)), file.size
    else:
        start, end = int(first), min(file.size, int(last) + 1) if last else file.size
        if last and int(last) < start:
            return whole
    if start >= file.size or start >= end:
        raise MillmError(
            f"The range `{found.group(0)}` is outside of the file, which has {file.size} bytes.",
            status=416,
            code="range_not_satisfiable",
            headers={"Content-Range": f"bytes */{file.size}"},
        )
    return Span(start, end, is_partial=True)


def file_headers(file: StoredFile, span: Span) -> dict[str, str]:
    """Return the headers: the type of a file that this server made, and an attachment without a type for others.

    Uploaded files must never render as pages of this site.
    """
    content_type = IMAGE_TYPES.get(file.filename.rpartition(".")[2]) if file.purpose == OUTPUT else None
    disposition = "attachment" if content_type is None else "inline"
    headers = {
        "Content-Type": content_type or "application/octet-stream",
        "Content-Length": str(span.end - span.start),
        "Content-Disposition": f"{disposition}; filename*=UTF-8''{percent_encode(file.filename, safe='')}",
        "Accept-Ranges": "bytes",
        "ETag": etag(file),
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
    }
    if content_type is not None and file.expires_at is not None:
        left_s = (file.expires_at - timezone.now()).total_seconds()
        headers["Cache-Control"] = f"private, max-age={max(0, int(left_s))}"
    if span.is_partial:
        headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{file.size}"
    return headers


def etag(file: StoredFile) -> str:
    return f'"{file.sha256}"'


class Sending:
    """A file being sent; reads a block when the previous one was taken."""

    def __init__(self, call: Call, opened: IO[bytes], span: Span) -> None:
        self._call = call
        self._opened = opened
        self._span = span
        self._left = span.end - span.start

    async def blocks(self) -> AsyncGenerator[bytes, None]:
        await in_thread(self._opened.seek, self._span.start)
        while self._left > 0:
            block = await in_thread(self._opened.read, min(BLOCK, self._left))
            if not block:
                raise OSError("A stored file is shorter than its recorded size.")
            yield block
            self._left -= len(block)

    def close(self) -> None:
        """Close the file; may be called from any thread."""
        if self._left > 0:
            self._call.leave()
        self._opened.close()
        self._call.close()
