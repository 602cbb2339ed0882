"""Run parsers in a separate process: documents are untrusted, and parsers have bugs."""

from __future__ import annotations

import json
import logging
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from core.isolation import NEEDED
from storage.chunking import Chunking
from storage.errors import ExtractionError
from storage.extraction.__main__ import REFUSED, Task

logger = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[2]
MAX_PIECES = 100_000  # per file
MAX_MESSAGES = 2**16  # bytes that a parser may write to standard error
BLOCK = 2**16
POLL_S = 1.0


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


def _nothing() -> None:
    """Do nothing. The default for callers that never cancel."""


def extract_text(path: Path, filename: str, limits: Limits = Limits()) -> str:
    """Return the document's text without characters that Postgres cannot store. Raise ExtractionError if that fails."""
    return _run(path, filename, Task(limits.cpu_s, limits.memory, limits.max_text, 1), limits, _nothing).decode()


def extract_pieces(
    path: Path,
    filename: str,
    *,
    tokenizer: bytes,
    chunking: Chunking,
    limits: Limits = Limits(),
    check: Callable[[], None] = _nothing,
) -> list[str]:
    """Return the text of the document in chunks. Raise ExtractionError if that fails.

    ``tokenizer`` is a tokenizer's JSON. ``check`` is called every second; an exception that it raises ends the process.
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
    command = [sys.executable, "-m", "storage.extraction", filename, json.dumps(asdict(task))]
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    with path.open("rb") as document:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            command,
            cwd=ROOT,
            env=environment,
            stdin=document,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=() if task.tokenizer is None else (task.tokenizer,),
            start_new_session=True,  # Ctrl-C is for the server, which then interrupts the job
        )
    try:
        # Chunks that overlap by half contain the text twice, and some letters grow by up to three bytes.
        out, err = read_bounded(process, limits.wall_s, 8 * limits.max_text + BLOCK, check)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    return _result(process.returncode, out, err)


def read_bounded(
    process: subprocess.Popen[bytes], wall_s: float, max_bytes: int, check: Callable[[], None]
) -> tuple[bytes, bytes]:
    """Return the output of the process. Raise ExtractionError if it is too long or comes too late."""
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + wall_s
    out, err = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        checked_at = time.monotonic()
        while selector.get_map():
            for key, _ in selector.select(min(POLL_S, max(0.0, deadline - time.monotonic()))):
                block = os.read(key.fd, BLOCK)
                key.data.extend(block)
                if not block:
                    selector.unregister(key.fileobj)
            del err[:-MAX_MESSAGES]  # the message is in the last line
            if len(out) > max_bytes:
                raise ExtractionError("The document contains too much text.")
            now = time.monotonic()
            if now > deadline:
                raise ExtractionError("Reading the document takes too long.")
            if now - checked_at >= POLL_S:
                checked_at = now
                check()
    process.wait(max(0.1, deadline - time.monotonic()))
    return bytes(out), bytes(err)


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
    _warn_about_isolation(frozenset(json.loads(entered)))
    return text


@cache
def _warn_about_isolation(entered: frozenset[str]) -> None:
    """Warn about missing isolation, once per process."""
    if missing := sorted(NEEDED - entered):
        logger.warning(
            "Documents are parsed without %s, which this kernel or container does not permit. A vulnerability in a "
            "parser could be used to read files or open connections.",
            " and ".join(missing),
        )
