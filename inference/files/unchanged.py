"""Notice that files changed while they were read: what was read of them then belongs to no version of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Stamp = tuple[int, int, int, int, int]


class FileChangedError(OSError):
    """A file changed between the beginning and the end of the reading."""


@contextmanager
def unchanged(files: Sequence[Path]) -> Iterator[None]:
    """Raise FileChangedError if one of the files is another one, or has other contents, when the block ends.

    It takes the place of errors that the block raises: half-written files cause them. The time of the last change of
    the inode is compared too, because tools that copy files set the other times as they like.
    """
    before = [stamp(file) for file in files]
    try:
        yield
    except Exception as error:
        _compare(files, before, error)
        raise
    _compare(files, before, None)


def stamp(file: Path) -> Stamp | None:
    """None for a file that is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _compare(files: Sequence[Path], before: Sequence[Stamp | None], error: Exception | None) -> None:
    for file, old in zip(files, before, strict=True):
        if stamp(file) != old:
            raise FileChangedError(f"{file.name} changed while it was read") from error
