"""Images that a request sends as a file, as a data URI, by URL or as a stored file."""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import IO

from django.conf import settings

from core.database import in_database
from core.errors import MillmError
from core.runtime import runtime
from media.decoder.process import decode_image
from media.fetch import FETCH_RULES, fetch
from media.messages import MAX_IMAGE_PIXELS
from openai_api.http.call import Call
from openai_api.http.errors import invalid
from openai_api.http.file_uploads import SentFile
from openai_api.media.forms import in_media_thread
from openai_api.media.video_schemas import ImageReference
from storage.blobs import BLOCK, BlobStore, BlobWriter
from storage.files import find_file

MAX_FETCHES = 4  # at once; a slow URL occupies a thread for half a minute
CHARACTERS = 4 * 2**20  # of base64 that are decoded at once
Opener = Callable[[], IO[bytes]]
_DATA = re.compile(r"data:(?:image/[\w.+-]{1,60})?(?:;[\w=.+-]{1,60}){0,4};base64,", re.IGNORECASE)
_fetches = ThreadPoolExecutor(MAX_FETCHES, thread_name_prefix="media-fetches")


async def write_image(call: Call, source: SentFile | ImageReference, writer: BlobWriter, *, param: str) -> None:
    """Write the image, which must be decodable. Raises MillmError 400 with the code ``invalid_`` and ``param``."""
    with _invalid(param):
        stored = await _stored(call, source)
    write = partial(_write, source, stored, writer, param)
    if isinstance(source, ImageReference) and (source.image_url or "").lower().startswith("http"):
        await asyncio.get_running_loop().run_in_executor(_fetches, write)
    else:
        await in_media_thread(write)


async def _stored(call: Call, source: SentFile | ImageReference) -> Opener | None:
    """Return what opens the image on this server; None if it has to be decoded or fetched."""
    if isinstance(source, SentFile):
        sent = source.path
        return lambda: sent.open("rb")
    if source.file_id is None:
        return None
    file = await in_database(find_file, source.file_id, owner_id=call.owner_id)
    return partial(BlobStore.from_settings().open, file.blob)


def _write(source: SentFile | ImageReference, stored: Opener | None, writer: BlobWriter, param: str) -> None:
    limit: int = settings.MILLM_MAX_MEDIA_BYTES
    with _invalid(param):
        if stored is not None:
            _copy(stored, writer, limit)
        elif isinstance(source, ImageReference) and source.image_url is not None:
            _write_url(source.image_url, writer, limit)
        decode_image(writer.flushed(), max_pixels=MAX_IMAGE_PIXELS)


def _write_url(url: str, writer: BlobWriter, limit: int) -> None:
    if url[:5].lower() == "data:":
        _write_data(url, writer, limit)
    elif settings.MILLM_FETCH_IMAGES:
        fetch(url, writer.write, max_bytes=limit, rules=runtime.get(FETCH_RULES))
    else:
        raise invalid("This server does not fetch images (MILLM_FETCH_IMAGES). Send the image itself.")


def _copy(stored: Opener, writer: BlobWriter, limit: int) -> None:
    try:
        file = stored()
    except FileNotFoundError:
        raise invalid("The content of the file no longer exists.") from None
    with file:
        while block := file.read(BLOCK):
            if writer.size + len(block) > limit:
                raise invalid(f"The image has more than {limit} bytes.")
            writer.write(block)


def _write_data(url: str, writer: BlobWriter, limit: int) -> None:
    head = _DATA.match(url)
    if head is None:
        raise invalid("A data URI must be an image in base64, such as data:image/png;base64,...")
    if (len(url) - head.end()) * 3 // 4 > limit + 2:
        raise invalid(f"The image has more than {limit} bytes.")
    for start in range(head.end(), len(url), CHARACTERS):
        try:
            writer.write(binascii.a2b_base64(url[start : start + CHARACTERS], strict_mode=True))
        except ValueError:
            raise invalid("The data URI is not valid base64.") from None


@contextmanager
def _invalid(param: str) -> Iterator[None]:
    """Raise errors of the client with the code and the name of the field."""
    try:
        yield
    except MillmError as error:
        if error.status >= 500:
            raise
        message = f"`{param}` cannot be used: {error.message}"
        raise invalid(message, param=param, code=f"invalid_{param}") from None
