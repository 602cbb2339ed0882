"""Blobs on disk. They are written to a temporary file, synced and moved into place, so readers never see partial
content. With MILLM_FILES_URL they are kept elsewhere (:mod:`storage.remote_blobs`)."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from django.conf import settings

from storage.errors import StorageFullError

BLOCK = 2**20
CHECK_EVERY = 8 * BLOCK  # bytes between two checks of the free space
BEGINNING = 64
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class Blob:
    """A stored blob. ``sha256`` is hexadecimal."""

    name: str
    size: int
    sha256: str


class BlobStore:
    """A folder of blobs, two levels deep. ``min_free_bytes`` of its disk stay free for the database.

    Beside the blobs there may be folders of growing files, which their writers append to (``root / folder``). In this
    store their methods have little to do: such files are read where they are written.
    """

    def __init__(self, root: Path, *, min_free_bytes: int) -> None:
        self.root = root
        self.min_free_bytes = min_free_bytes

    @classmethod
    def from_settings(cls, folder: str = "files") -> BlobStore:
        """Return the store of a folder of MILLM_HOME, or of MILLM_FILES_URL if that is set."""
        root: Path = settings.MILLM_HOME / folder
        if not settings.MILLM_FILES_URL:
            return cls(root, min_free_bytes=settings.MILLM_MIN_FREE_BYTES)

        from storage.remote_blobs import RemoteBlobStore

        url = f"{settings.MILLM_FILES_URL}/{folder}"
        return RemoteBlobStore(url, root, min_free_bytes=settings.MILLM_MIN_FREE_BYTES)

    @property
    def unfinished(self) -> Path:
        return self.root / "unfinished"

    def open(self, name: str) -> IO[bytes]:
        """Open a blob to be read. Raise FileNotFoundError if there is none."""
        return self.path(name).open("rb")

    @contextlib.contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Provide the path of a blob on this machine, until the end of the block. It may not exist."""
        yield self.path(name)

    @contextlib.contextmanager
    def writing(self) -> Iterator[BlobWriter]:
        """Provide a writer. Its blob is deleted at the end of the block unless kept. Raise StorageFullError if full."""
        with raising_if_full():
            self.unfinished.mkdir(parents=True, exist_ok=True)
            self.check_room(0)
            writer = BlobWriter(self, self.unfinished / uuid.uuid4().hex)
        try:
            with raising_if_full():
                yield writer
        finally:
            writer.discard()

    def copy(self, parts: Iterable[str], writer: BlobWriter) -> None:
        """Append the blobs ``parts`` to the blob being written."""
        for name in parts:
            with self.open(name) as source:
                while block := source.read(BLOCK):
                    writer.write(block)

    def delete(self, name: str) -> None:
        """Delete a blob. Idempotent; open readers keep their file descriptor."""
        self.path(name).unlink(missing_ok=True)

    def check_room(self, num_bytes: int) -> None:
        free = shutil.disk_usage(self.root).free
        if free - num_bytes < self.min_free_bytes:
            raise full()

    def names(self, *, older_than_s: float) -> Iterator[str]:
        """Yield the names of blobs that are older than ``older_than_s`` seconds."""
        until = time.time() - older_than_s
        for folder in self.root.glob("[0-9a-f][0-9a-f]"):
            yield from (path.name for path in _older(folder.iterdir(), until))

    def keep(self, path: Path, name: str) -> None:
        """Move a file that is synced into place, as the blob ``name``."""
        target = self.path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        _sync_folder(target.parent)

    def save_part(self, file: str, source: Path, start: int) -> int:
        """Keep the bytes of a growing file from ``start`` on, so that other machines find them. Return its size."""
        return source.stat().st_size

    def fetch_parts(self, file: str, target: Path) -> None:
        """Write what was kept of a growing file to ``target``, if other machines may have written it."""

    def drop_folder(self, folder: str, *, besides: str = "") -> None:
        """Delete a folder of growing files; with ``besides``, all in it but the folder of that name. Idempotent."""
        if not besides:
            shutil.rmtree(self.root / folder, ignore_errors=True)
            return
        with contextlib.suppress(FileNotFoundError):
            for path in (self.root / folder).iterdir():
                if path.is_dir() and path.name != besides:
                    shutil.rmtree(path, ignore_errors=True)
                elif path.is_file():
                    path.unlink(missing_ok=True)

    def folders(self, parent: str) -> set[str]:
        """Return the names of the folders in a folder of growing files."""
        return {path.name for path in (self.root / parent).glob("*")}

    def path(self, name: str) -> Path:
        """Return where a blob lies if it is kept here. Use :meth:`open` or :meth:`local`, which find all blobs."""
        return self.root / name[:2] / name

    def delete_unfinished(self, *, older_than_s: float) -> int:
        """Delete the temporary files of crashed writers and return how many there were."""
        until = time.time() - older_than_s
        old = list(_older(self.unfinished.glob("*"), until))
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)


class BlobWriter:
    """A blob being written. Not thread-safe."""

    def __init__(self, store: BlobStore, path: Path) -> None:
        self._store = store
        self._path = path
        self._file: IO[bytes] = path.open("xb")
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self.size = 0
        self.beginning = b""  # the first bytes, enough to recognise the format
        self._checked_at = 0

    @property
    def md5(self) -> str:
        return self._md5.hexdigest()

    def write(self, data: bytes) -> None:
        if self.size + len(data) - self._checked_at >= CHECK_EVERY:
            self._store.check_room(len(data))
            self._checked_at = self.size
        self._file.write(data)
        self._sha256.update(data)
        self._md5.update(data)
        if len(self.beginning) < BEGINNING:
            self.beginning += bytes(data[: BEGINNING - len(self.beginning)])
        self.size += len(data)

    def flushed(self) -> Path:
        """Return the path of the bytes written so far, to be read until the blob is discarded."""
        with raising_if_full():
            self._file.flush()
        return self._path

    def keep(self) -> Blob:
        """Sync the bytes and move them into place."""
        with raising_if_full():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            blob = Blob(uuid.uuid4().hex, self.size, self._sha256.hexdigest())
            self._store.keep(self._path, blob.name)
        return blob

    def discard(self) -> None:
        """Delete the blob unless it was kept. Idempotent."""
        with contextlib.suppress(OSError):  # closing flushes, which fails again on a full disk
            self._file.close()
        self._path.unlink(missing_ok=True)


def _older(paths: Iterable[Path], until: float) -> Iterator[Path]:
    """Yield the paths last written before ``until``. Other requests may rename and delete files meanwhile."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < until:
                yield path


def full() -> StorageFullError:
    return StorageFullError(
        "There is not enough disk space on the server. Delete files, or ask the operator for more space."
    )


@contextlib.contextmanager
def raising_if_full() -> Iterator[None]:
    """Raise StorageFullError if the disk is full; other disk errors pass unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise full() from error
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
