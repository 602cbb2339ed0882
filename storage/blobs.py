"""Blobs on disk. They are written to a temporary file, synced and moved into place, so readers never see partial
content. With MILLM_FILES_URL they are kept elsewhere, through fsspec."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from django.conf import settings

from storage.errors import StorageFullError, StorageUnreachableError

logger = logging.getLogger(__name__)
BLOCK = 2**20
CHECK_EVERY = 8 * BLOCK  # bytes between two checks of the free space
BEGINNING = 64
READ_BLOCK = 4 * BLOCK
PART_BYTES = 4 * BLOCK  # of a growing file in a bucket
UNFINISHED = ".unfinished"
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci"})  # without folders
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")  # where file systems tell the age of a file
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


class RemoteBlobStore(BlobStore):
    """A folder of blobs at a URL, such as ``s3://bucket/millm/files``. Blobs are written to ``root`` on this machine,
    then sent.

    All methods may raise StorageUnreachableError.
    """

    def __init__(self, url: str, root: Path, *, min_free_bytes: int) -> None:
        super().__init__(root, min_free_bytes=min_free_bytes)
        self._url = url

    @property
    def _files(self) -> Any:
        return _file_system(self._url)[0]

    @property
    def _prefix(self) -> str:
        return _file_system(self._url)[1]

    def open(self, name: str) -> IO[bytes]:
        with _reachable():
            self._files.info(self._blob(name))  # S3's files open without a request
            return cast("IO[bytes]", self._files.open(self._blob(name), "rb", block_size=READ_BLOCK))

    @contextlib.contextmanager
    def local(self, name: str) -> Iterator[Path]:
        self.unfinished.mkdir(parents=True, exist_ok=True)
        copy = self.unfinished / uuid.uuid4().hex
        try:
            with self.open(name) as source, copy.open("xb") as target:
                shutil.copyfileobj(source, target, BLOCK)
            yield copy
        finally:
            copy.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        self._remove(self._blob(name))

    def names(self, *, older_than_s: float) -> Iterator[str]:
        until = time.time() - older_than_s
        for path, info in self._find().items():
            folder, name = PurePosixPath(path).parts[-2:]
            if folder == name[:2] and _modified(info) < until:
                yield name

    def keep(self, path: Path, name: str) -> None:
        with _writable():
            self._make_folder_of(self._blob(name))
            self._files.put_file(str(path), self._blob(name))

    # Growing files are kept in parts of about PART_BYTES, named by their offset. A save replaces the part that grows,
    # so that a long file has few parts. A part may end behind the next one's start.

    def save_part(self, file: str, source: Path, start: int) -> int:
        size = source.stat().st_size
        if size > start:
            first = start // PART_BYTES * PART_BYTES
            part = f"{self._path(file)}/{first:015d}"
            with source.open("rb") as reading, _writable():
                reading.seek(first)
                self._make_folder_of(part)
                self._replace(part, reading)
        return size

    def _replace(self, path: str, reading: IO[bytes]) -> None:
        """Write a file that is either the old or the new one for others, as an object in a bucket always is."""
        is_object = bool(OBJECT_STORES.intersection(_protocols(self._files)))
        written = path if is_object else f"{path}{UNFINISHED}"
        with self._files.open(written, "wb") as target:
            shutil.copyfileobj(reading, target, BLOCK)
        if not is_object:
            self._files.mv(written, path)

    def fetch_parts(self, file: str, target: Path) -> None:
        names = {path: PurePosixPath(path).name for path in self._find(file)}
        parts = {int(name): path for path, name in names.items() if not name.endswith(UNFINISHED)}
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as writing, _reachable():
            for start in sorted(parts):
                if start > writing.tell():  # a part is missing: the rest cannot be used
                    break
                writing.seek(start)
                with self._files.open(parts[start], "rb", block_size=READ_BLOCK) as part:
                    shutil.copyfileobj(part, writing, BLOCK)

    def drop_folder(self, folder: str, *, besides: str = "") -> None:
        super().drop_folder(folder, besides=besides)
        kept = f"{self._path(folder)}/{besides}/" if besides else None
        for path in self._find(folder):
            if kept is None or not path.startswith(kept):
                self._remove(path)

    def folders(self, parent: str) -> set[str]:
        depth = len(PurePosixPath(self._path(parent)).parts)
        return super().folders(parent) | {PurePosixPath(path).parts[depth] for path in self._find(parent)}

    def _path(self, *parts: str) -> str:
        return "/".join((self._prefix, *parts))

    def _blob(self, name: str) -> str:
        return self._path(name[:2], name)

    def _make_folder_of(self, path: str) -> None:
        if not OBJECT_STORES.intersection(_protocols(self._files)):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _find(self, *folder: str) -> Mapping[str, Mapping[str, Any]]:
        """Return all files in a folder, by path; none if it does not exist."""
        with _reachable():
            self._files.invalidate_cache()
            return cast("Mapping[str, Mapping[str, Any]]", self._files.find(self._path(*folder), detail=True))

    def _remove(self, path: str) -> None:
        with _reachable(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(path)


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


@lru_cache(maxsize=8)
def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, whose first use may import a package, and the path in it."""
    from fsspec.core import url_to_fs

    files, path = url_to_fs(url)
    return files, path


@contextlib.contextmanager
def _reachable() -> Iterator[None]:
    """Raise StorageUnreachableError for whatever a file system raises, but FileNotFoundError unchanged."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        logger.exception("The file storage (MILLM_FILES_URL) cannot be used.")
        raise _unreachable() from error


@contextlib.contextmanager
def _writable() -> Iterator[None]:
    """Raise StorageUnreachableError also for a bucket that does not exist."""
    try:
        with _reachable():
            yield
    except FileNotFoundError as error:
        logger.error("The file storage (MILLM_FILES_URL) does not exist: %s", error)
        raise _unreachable() from error


def _unreachable() -> StorageUnreachableError:
    return StorageUnreachableError("The server's file storage cannot be reached. Try again later.", retry_after_s=10.0)


def _protocols(files: Any) -> tuple[str, ...]:
    found = files.protocol
    return (found,) if isinstance(found, str) else tuple(found)


def _modified(info: Mapping[str, Any]) -> float:
    """Return the time of the last change in seconds since 1970; now if the file system does not tell."""
    value = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if value is not None else time.time()
