"""Send a file, whole or a range, one block at a time as the client reads."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
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
class Content:
    """A file to send. ``open`` may raise FileNotFoundError. ``content_type``: of what this server made.
    ``expires_at``: clients may cache it so long.
    """

    open: Callable[[], IO[bytes]]
    filename: str
    size: int
    sha256: str
    content_type: str | None = None
    expires_at: datetime | None = None

    @property
    def etag(self) -> str:
        return f'"{self.sha256}"'


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes from ``start`` to before ``end``."""

    start: int
    end: int
    is_partial: bool


async def download(call: Call, file: StoredFile) -> HttpResponseBase:
    """Return the file or the requested range. Raises MillmError 416, and 404 when the content is gone."""
    read = partial(BlobStore.from_settings().open, file.blob)
    gone = MillmError("The content of the file no longer exists.", status=404, code="file_not_found", param="file_id")
    content_type = IMAGE_TYPES.get(file.filename.rpartition(".")[2]) if file.purpose == OUTPUT else None
    expires_at = file.expires_at if content_type is not None else None
    content = Content(read, file.filename, file.size, file.sha256, content_type, expires_at)
    return await send_content(call, content, gone)


async def send_content(call: Call, content: Content, gone: MillmError) -> HttpResponseBase:
    """Return the content or the requested range. Raises MillmError 416, and ``gone`` if the file does not exist."""
    span = chosen_span(call, content)
    try:
        opened = await in_thread(content.open)
    except FileNotFoundError:
        raise gone from None
    if call.request.method == "HEAD":
        opened.close()
        response: HttpResponseBase = HttpResponse()
    else:
        sending = Sending(call, opened, span)
        response = StreamingHttpResponse(EventSource(sending.blocks(), sending.close))
    response.status_code = 206 if span.is_partial else 200
    for name, value in content_headers(content, span).items():
        response.headers[name] = value
    return response


def chosen_span(call: Call, content: Content) -> Span:
    """Return the requested range; the whole file without one, for several, or for another version."""
    whole = Span(0, content.size, is_partial=False)
    found = _RANGE.fullmatch(call.request.headers.get("Range", "").strip().replace(" ", ""))
    condition = call.request.headers.get("If-Range")
    if found is None or found.group(0) == "bytes=-" or condition not in {None, content.etag}:
        return whole
    first, last = found.groups()
    if not first:
        start, end = max(0, content.size - int(last)), content.size
    else:
        start, end = int(first), min(content.size, int(last) + 1) if last else content.size
        if last and int(last) < start:
            return whole
    if start >= content.size or start >= end:
        raise MillmError(
            f"The range `{found.group(0)}` is outside of the file, which has {content.size} bytes.",
            status=416,
            code="range_not_satisfiable",
            headers={"Content-Range": f"bytes */{content.size}"},
        )
    return Span(start, end, is_partial=True)


def content_headers(content: Content, span: Span) -> dict[str, str]:
    """Return the headers: the type of what this server made, and an attachment without a type for other files.

    Uploaded files must never render as pages of this site.
    """
    disposition = "attachment" if content.content_type is None else "inline"
    age = "no-cache" if content.expires_at is None else f"max-age={_seconds_until(content.expires_at)}"
    headers = {
        "Content-Type": content.content_type or "application/octet-stream",
        "Content-Length": str(span.end - span.start),
        "Content-Disposition": f"{disposition}; filename*=UTF-8''{percent_encode(content.filename, safe='')}",
        "Accept-Ranges": "bytes",
        "ETag": content.etag,
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": f"private, {age}",
    }
    if span.is_partial:
        headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{content.size}"
    return headers


def _seconds_until(time: datetime) -> int:
    return max(0, int((time - timezone.now()).total_seconds()))


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
