"""Start the decoder's process and read what it decodes."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from core.errors import MillmError
from core.isolated_process import (
    BLOCK,
    TooMuchOutputError,
    TooSlowError,
    copy_output,
    isolated_child,
    never,
    warn_about_isolation,
)
from media.decoder.__main__ import REFUSED, Header, Task

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

logger = logging.getLogger(__name__)
MAX_LINES = 2**10  # bytes of the decoder's two lines
MEMORY = 2 * 2**30
MIN_CPU_S = 30
SECONDS_PER_CPU_S = 20  # of audio that a slow core decodes in a second of its time, at least
RATE = 16_000  # Hz


class DecodeError(MillmError):
    """The file cannot be decoded."""

    code = "invalid_file"


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
def decoded_audio(path: Path, *, max_seconds: float, check: Callable[[], None] = never) -> Iterator[Audio]:
    """Decode an audio or video file. Raise DecodeError, before the block.

    ``check`` is called twice a second; an exception that it raises ends the decoder.
    """
    cpu_s = int(MIN_CPU_S + max_seconds / SECONDS_PER_CPU_S)
    task = Task("audio", cpu_s, MEMORY, rate=RATE, max_seconds=max_seconds)
    with tempfile.TemporaryFile() as spool:
        header = _run(path, task, spool, int(max_seconds * RATE * 2) + BLOCK, check)
        yield Audio(spool, header.container)


def decode_image(path: Path, *, max_pixels: int, check: Callable[[], None] = never) -> Image:
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
        header = _run(path, Task("image", MIN_CPU_S, MEMORY, max_pixels=max_pixels), nothing, 4 * max_pixels, never)
    return header.width, header.height


def _run(path: Path, task: Task, spool: IO[bytes], max_bytes: int, check: Callable[[], None]) -> Header:
    """Write the decoder's data into ``spool`` and return its header."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    output, limit = _Output(spool), max_bytes + MAX_LINES
    with isolated_child("media.decoder", json.dumps(asdict(task)), file=path, environment=threads) as process:
        try:
            messages = copy_output(process, output.write, wall_s=4 * task.cpu_s + 60, max_bytes=limit, check=check)
        except (TooMuchOutputError, TooSlowError):
            raise DecodeError("The file takes too long or too much memory to be decoded.") from None
    return _header(process.returncode, output.lines, messages)


class _Output:
    """Takes the first two lines of the decoder's output, and writes the rest into ``spool``."""

    def __init__(self, spool: IO[bytes]) -> None:
        self.lines: list[bytes] = []
        self._spool = spool
        self._head = b""

    def write(self, block: bytes) -> None:
        if not self.lines:
            self._head += block
            if self._head.count(b"\n") < 2:
                return
            *self.lines, block = self._head.split(b"\n", 2)
        self._spool.write(block)


def _header(returncode: int, lines: list[bytes], messages: bytes) -> Header:
    if returncode == REFUSED:
        refusal = json.loads(messages.splitlines()[-1])
        raise DecodeError(refusal["message"], code=refusal["code"])
    if returncode != 0 or len(lines) != 2:
        logger.debug("The decoder ended with %d: %s", returncode, messages.decode("utf-8", "replace"))
        raise DecodeError("The file takes too long or too much memory to be decoded, or crashes its decoder.")
    warn_about_isolation(frozenset(json.loads(lines[0])), "Media files are decoded")
    return Header(**json.loads(lines[1]))
