"""Blobs in a bucket or another file system that several servers share, through fsspec."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from storage.blobs import BLOCK, BlobStore
from storage.errors import StorageUnreachableError

logger = logging.getLogger(__name__)
READ_BLOCK = 4 * BLOCK
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci"})  # without folders
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")  # where file systems tell the age of a file


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
            self._files.info(self._path(name))  # S3's files open without a request
            return cast("IO[bytes]", self._files.open(self._path(name), "rb", block_size=READ_BLOCK))

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
        self._remove(self._path(name))

    def names(self, *, older_than_s: float) -> Iterator[str]:
        until = time.time() - older_than_s
        for path, info in self._find("").items():
            folder, name = PurePosixPath(path).parts[-2:]
            if folder == name[:2] and _modified(info) < until:
                yield name

    def keep(self, path: Path, name: str) -> None:
        with _writable():
            self._make_folder_of(self._path(name))
            self._files.put_file(str(path), self._path(name))

    # Folders of growing files: each sync sends what was written since the last one, as a part with its offset.

    def save_part(self, file: str, source: Path, start: int) -> int:
        size = source.stat().st_size
        if size > start:
            part = f"{self._path(file)}/{start:015d}"
            with source.open("rb") as reading, _writable():
                reading.seek(start)
                self._make_folder_of(part)
                with self._files.open(part, "wb") as target:
                    shutil.copyfileobj(reading, target, BLOCK)
        return size

    def fetch_parts(self, file: str, target: Path) -> None:
        parts = {int(PurePosixPath(path).name): path for path in self._find(file)}
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as writing, _reachable():
            for start in sorted(parts):
                if start != writing.tell():  # a part is missing: the rest cannot be used
                    break
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

    def _path(self, name: str) -> str:
        """Return the path of a blob, or of a file or folder with a slash in its name or none of hexadecimal digits."""
        is_blob = len(name) == 32 and "/" not in name
        return "/".join((self._prefix, *((name[:2], name) if is_blob else (name,) if name else ())))

    def _make_folder_of(self, path: str) -> None:
        if not OBJECT_STORES.intersection(_protocols(self._files)):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _find(self, folder: str) -> Mapping[str, Mapping[str, Any]]:
        """Return all files in a folder, by path; none if it does not exist."""
        with _reachable():
            self._files.invalidate_cache()
            return cast("Mapping[str, Mapping[str, Any]]", self._files.find(self._path(folder), detail=True))

    def _remove(self, path: str) -> None:
        with _reachable(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(path)


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
