"""Start the decoder's process and read what it decodes."""

from __future__ import annotations

import json
import logging
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from core.errors import MillmError
from core.isolation import NEEDED
from media.decoder.__main__ import REFUSED, Header, Task

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

logger = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[2]
BLOCK = 2**18
MAX_MESSAGES = 2**16  # bytes of standard error that are kept
POLL_S = 0.5
MEMORY = 2 * 2**30
MIN_CPU_S = 30
SECONDS_PER_CPU_S = 20  # of audio that a slow core decodes in a second of its time, at least
RATE = 16_000  # Hz


class DecodeError(MillmError):
    """The file cannot be decoded."""

    code = "invalid_file"


def _nothing() -> None:
    """Do nothing: the default for callers that never cancel."""


@dataclass(frozen=True, slots=True)
class Image:
    """Decoded pixels, RGBA, row by row. ``has_alpha``: some may be transparent."""

    width: int
    height: int
    pixels: bytes
    has_alpha: bool


class Audio:
    """Decoded audio: mono 16-bit samples at :data:`RATE`, in a file without a name."""

    def __init__(self, file: IO[bytes], container: str) -> None:
        import numpy as np

        self.container = container
        self.num_samples = file.seek(0, os.SEEK_END) // 2
        self.samples: npt.NDArray[np.int16] = np.memmap(file, dtype="<i2", mode="r", shape=(self.num_samples,))

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Return samples from -1 to 1, fewer at the end."""
        import numpy as np

        return np.asarray(self.samples[max(0, start) : stop], dtype=np.float32) / 32_768.0

    @property
    def seconds(self) -> float:
        return self.num_samples / RATE


@contextmanager
def decoded_audio(path: Path, *, max_seconds: float, check: Callable[[], None] = _nothing) -> Iterator[Audio]:
    """Decode an audio or video file. Raise DecodeError, before the block.

    ``check`` is called twice a second; an exception that it raises ends the decoder.
    """
    cpu_s = int(MIN_CPU_S + max_seconds / SECONDS_PER_CPU_S)
    task = Task("audio", cpu_s, MEMORY, rate=RATE, max_seconds=max_seconds)
    with tempfile.TemporaryFile() as spool:
        header = _run(path, task, spool, int(max_seconds * RATE * 2) + BLOCK, check)
        yield Audio(spool, header.container)


def decode_image(path: Path, *, max_pixels: int, check: Callable[[], None] = _nothing) -> Image:
    """Decode an image file. Raise DecodeError."""
    with tempfile.SpooledTemporaryFile(max_size=2**28) as spool:
        header = _run(path, Task("image", MIN_CPU_S, MEMORY, max_pixels=max_pixels), spool, 4 * max_pixels, check)
        spool.seek(0)
        pixels = spool.read()
    if len(pixels) != 4 * header.width * header.height:
        raise DecodeError("The image cannot be decoded.")
    return Image(header.width, header.height, pixels, header.has_alpha)


def image_size(path: Path, *, max_pixels: int) -> tuple[int, int]:
    """Decode an image file, and return its width and height. Raise DecodeError."""
    with Path(os.devnull).open("wb") as nothing:
        header = _run(path, Task("image", MIN_CPU_S, MEMORY, max_pixels=max_pixels), nothing, 4 * max_pixels, _nothing)
    return header.width, header.height


def _run(path: Path, task: Task, spool: IO[bytes], max_bytes: int, check: Callable[[], None]) -> Header:
    """Write the decoder's data into ``spool`` and return its header."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT), **threads}
    with path.open("rb") as file:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "media.decoder", json.dumps(asdict(task))],
            cwd=ROOT,
            env=environment,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the server
        )
    try:
        lines, messages = _copy(process, spool, task.cpu_s, max_bytes, check)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    return _header(process.returncode, lines, messages)


def _copy(
    process: subprocess.Popen[bytes], spool: IO[bytes], cpu_s: int, max_bytes: int, check: Callable[[], None]
) -> tuple[list[bytes], bytes]:
    """Return the first two lines of the output and the messages; write the rest of the output into ``spool``."""
    assert process.stdout is not None
    assert process.stderr is not None
    deadline, checked_at = time.monotonic() + 4 * cpu_s + 60, time.monotonic()
    head, messages, num_bytes = b"", bytearray(), 0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(POLL_S):
                block = os.read(key.fd, BLOCK)
                if not block:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    messages += block
                    del messages[:-MAX_MESSAGES]
                elif head.count(b"\n") < 2:
                    head += block
                    if head.count(b"\n") >= 2:
                        isolation, header, rest = head.split(b"\n", 2)
                        head = isolation + b"\n" + header + b"\n"
                        num_bytes += spool.write(rest)
                else:
                    num_bytes += spool.write(block)
            now = time.monotonic()
            if now > deadline or num_bytes > max_bytes:
                raise DecodeError("The file takes too long or too much memory to be decoded.")
            if now - checked_at >= POLL_S:
                checked_at = now
                check()
    process.wait(max(0.1, deadline - time.monotonic()))
    return head.splitlines(), bytes(messages)


def _header(returncode: int, lines: list[bytes], messages: bytes) -> Header:
    if returncode == REFUSED:
        refusal = json.loads(messages.splitlines()[-1])
        raise DecodeError(refusal["message"], code=refusal["code"])
    if returncode != 0 or len(lines) != 2:
        logger.debug("The decoder ended with %d: %s", returncode, messages.decode("utf-8", "replace"))
        raise DecodeError("The file takes too long or too much memory to be decoded, or crashes its decoder.")
    _note_isolation(frozenset(json.loads(lines[0])))
    return Header(**json.loads(lines[1]))


@cache
def _note_isolation(entered: frozenset[str]) -> None:
    """Warn about missing isolation, once per process."""
    if missing := sorted(NEEDED - entered):
        logger.warning(
            "Media files are decoded without %s, which this kernel or container does not permit; a fault in a decoder "
            "could read files or open connections.",
            " and ".join(missing),
        )
