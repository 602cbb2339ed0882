"""Start a module as an isolated child on an untrusted file, and read its output within limits.

The child enters the isolation of :mod:`core.isolation`. Its first line names what it entered.
"""

from __future__ import annotations

import logging
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from core.isolation import NEEDED

logger = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[1]
BLOCK = 2**18
MAX_MESSAGES = 2**16  # bytes of standard error that are kept
POLL_S = 0.5


class TooMuchOutputError(Exception):
    """The child writes more than it may."""


class TooSlowError(Exception):
    """The child takes longer than it may."""


def never() -> None:
    """Do nothing: the default for callers that never cancel."""


@contextmanager
def isolated_child(
    module: str, *arguments: str, file: Path, environment: Mapping[str, str], pass_fds: Collection[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Provide the child, with the file as its standard input. It is ended with the block."""
    with file.open("rb") as opened:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT), **environment},
            stdin=opened,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C is for the server, which then ends the work
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def copy_output(
    process: subprocess.Popen[bytes],
    write: Callable[[bytes], object],
    *,
    wall_s: float,
    max_bytes: int,
    check: Callable[[], None],
) -> bytes:
    """Pass the output to ``write`` in blocks, wait for the end, and return the last messages of standard error.

    ``check`` is called twice a second, and may raise. Raise TooMuchOutputError or TooSlowError.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    deadline, checked_at = time.monotonic() + wall_s, time.monotonic()
    messages, num_bytes = bytearray(), 0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(min(POLL_S, max(0.0, deadline - time.monotonic()))):
                block = os.read(key.fd, BLOCK)
                if not block:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    messages += block
                    del messages[:-MAX_MESSAGES]
                else:
                    num_bytes += len(block)
                    if num_bytes > max_bytes:
                        raise TooMuchOutputError
                    write(block)
            now = time.monotonic()
            if now > deadline:
                raise TooSlowError
            if now - checked_at >= POLL_S:
                checked_at = now
                check()
    process.wait(max(0.1, deadline - time.monotonic()))
    return bytes(messages)


@cache
def warn_about_isolation(entered: frozenset[str], work: str) -> None:
    """Warn about missing isolation, once per process and kind of work, such as "Documents are parsed"."""
    if missing := sorted(NEEDED - entered):
        logger.warning(
            "%s without %s, which this kernel or container does not permit. A vulnerability in a library could be "
            "used to read files or open connections.",
            work,
            " and ".join(missing),
        )
