"""Detect files that change while they are read, because the result would mix two versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Stamp = tuple[int, int, int, int, int]


class FileChangedError(OSError):
    """A file changed while it was read."""


@contextmanager
def unchanged(files: Sequence[Path]) -> Iterator[None]:
    """Raise FileChangedError if one of the files was replaced or modified during the block.

    It replaces errors that the block raises, since half-written files cause them. The inode's change time is compared
    too, because tools that copy files may set the other times.
    """
    before = [stamp(file) for file in files]
    try:
        yield
    except Exception as error:
        _compare(files, before, error)
        raise
    _compare(files, before, None)


def stamp(file: Path) -> Stamp | None:
    """Return the identity and times of a file; None if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _compare(files: Sequence[Path], before: Sequence[Stamp | None], error: Exception | None) -> None:
    for file, old in zip(files, before, strict=True):
        if stamp(file) != old:
            raise FileChangedError(f"{file.name} changed while it was being read") from error
