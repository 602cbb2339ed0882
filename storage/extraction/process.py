"""Run parsers in a separate process: documents are untrusted, and parsers have bugs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from core.isolated_process import (
    TooMuchOutputError,
    TooSlowError,
    copy_output,
    isolated_child,
    never,
    warn_about_isolation,
)
from storage.chunking import Chunking
from storage.errors import ExtractionError
from storage.extraction.__main__ import REFUSED, Task

logger = logging.getLogger(__name__)
MAX_PIECES = 100_000  # per file


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a parser. ``cpu_s`` does not include chunking, whose limit depends on the length of the text.

    ``max_text`` is in bytes of UTF-8.
    """

    cpu_s: int = 60
    wall_s: float = 900.0
    memory: int = 2 * 2**30
    max_text: int = 64 * 2**20
    max_pieces: int = MAX_PIECES


def extract_text(path: Path, filename: str, limits: Limits = Limits()) -> str:
    """Return the document's text without characters that Postgres cannot store. Raise ExtractionError if that fails."""
    return _run(path, filename, Task(limits.cpu_s, limits.memory, limits.max_text, 1), limits, never).decode()


def extract_pieces(
    path: Path,
    filename: str,
    *,
    tokenizer: bytes,
    chunking: Chunking,
    limits: Limits = Limits(),
    check: Callable[[], None] = never,
) -> list[str]:
    """Return the text of the document in chunks. Raise ExtractionError if that fails.

    ``tokenizer`` is a tokenizer's JSON. ``check`` is called twice a second; an exception that it raises ends the
    process.
    """
    task = Task(limits.cpu_s, limits.memory, limits.max_text, limits.max_pieces, **asdict(chunking))
    with ExitStack() as stack:
        memory = os.memfd_create("tokenizer")
        stack.callback(os.close, memory)
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(tokenizer)
        os.lseek(memory, 0, os.SEEK_SET)
        text = _run(path, filename, replace(task, tokenizer=memory), limits, check).decode()
    return text.split("\0") if text else []


def _run(path: Path, filename: str, task: Task, limits: Limits, check: Callable[[], None]) -> bytes:
    arguments = ("storage.extraction", filename, json.dumps(asdict(task)))
    descriptors = () if task.tokenizer is None else (task.tokenizer,)
    environment = {"PYTHONIOENCODING": "utf-8"}
    with isolated_child(*arguments, file=path, environment=environment, pass_fds=descriptors) as process:
        # Chunks that overlap by half contain the text twice, and some letters grow by up to three bytes.
        out, err = read_bounded(process, limits.wall_s, 8 * limits.max_text + 2**16, check)
    return _result(process.returncode, out, err)


def read_bounded(
    process: subprocess.Popen[bytes], wall_s: float, max_bytes: int, check: Callable[[], None]
) -> tuple[bytes, bytes]:
    """Return the output of the process. Raise ExtractionError if it is too long or comes too late."""
    out = bytearray()
    try:
        err = copy_output(process, out.extend, wall_s=wall_s, max_bytes=max_bytes, check=check)
    except TooMuchOutputError:
        raise ExtractionError("The document contains too much text.") from None
    except TooSlowError:
        raise ExtractionError("Reading the document takes too long.") from None
    return bytes(out), err


def _result(returncode: int, out: bytes, err: bytes) -> bytes:
    if returncode == REFUSED:
        refusal = json.loads(err.splitlines()[-1])  # parsers may write warnings before it
        raise ExtractionError(refusal["message"], code=refusal["code"])
    if returncode != 0:
        logger.debug("The parser ended with %d: %s", returncode, err.decode("utf-8", "replace"))
        raise ExtractionError(
            "The document could not be read: the parser crashed, or took too long or too much memory."
        )
    entered, _, text = out.partition(b"\n")
    warn_about_isolation(frozenset(json.loads(entered)), "Documents are parsed")
    return text
