"""Advisory locks on a file, released by the kernel when their process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FileLock:
    """flock(2) on ``path``. A forked child does not inherit its parent's lock: it has to take its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._pid = 0

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None and self._pid == os.getpid()

    def share(self) -> None:
        """Hold the lock together with others until :meth:`release` or the process' end."""
        if not self.is_held:
            self._open()
            fcntl.flock(self._fileno(), fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        """Turn a shared lock into the only one; False when somebody else holds it too."""
        try:
            fcntl.flock(self._fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait for the lock and hold it alone; each use has its own descriptor, so threads exclude each other too."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def release(self) -> None:
        if self.is_held:
            os.close(self._fileno())
        self._descriptor = None

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pid = os.getpid()

    def _fileno(self) -> int:
        assert self._descriptor is not None, "the lock is not held"
        return self._descriptor
