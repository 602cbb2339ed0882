"""Files of SAEs that clients upload: stored in folders of their own under MILLM_HOME/saes.

Files are checked here for their names and sizes only; their content is checked when the SAE is added, like that of any
other untrusted source.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
import uuid
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from django.conf import settings

from jobs.models import Job
from steering.errors import SteeringError
from steering.models import SAE

if TYPE_CHECKING:
    from jobs.running_job import RunningJob

MAX_FILES = 16
ENDINGS = (".json", ".yaml", ".safetensors", ".npz", ".pt", ".pth")
ABANDONED_S = 86_400.0  # no upload takes longer
_BLOCK = 1 << 20
_UPLOAD = re.compile(r"\.?[0-9a-f]{32}")  # a leading dot: not complete


class UploadError(SteeringError):
    """The uploaded files cannot be those of an SAE."""

    code = "invalid_file"
    param = "files"


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file of an upload; ``open`` returns its content from the start."""

    name: str
    size: int
    open: Callable[[], IO[bytes]]


def uploads_folder() -> Path:
    return Path(settings.MILLM_HOME) / "saes"


def store_upload(files: Sequence[UploadedFile]) -> Path:
    """Store the files of an SAE, or of a single zip archive, in a new folder. Raise UploadError; then nothing is left.

    The folder has its final name only once it is complete.
    """
    if len(files) == 1 and files[0].name.lower().endswith(".zip"):
        with files[0].open() as opened:
            return _store_archive(opened)
    return _store(files)


def delete_upload(source: str) -> None:
    """Delete an uploaded folder. Other sources stay as they are."""
    folder = Path(source)
    if folder.parent.resolve() == uploads_folder().resolve():
        shutil.rmtree(folder, ignore_errors=True)


def abandoned_uploads() -> list[Path]:
    """Return uploaded folders, a day old, that no SAE and no job that has not ended refers to."""
    root, before = uploads_folder(), time.time() - ABANDONED_S
    folders = [path for path in root.iterdir() if _UPLOAD.fullmatch(path.name)] if root.is_dir() else []
    old = [path for path in folders if path.is_dir() and not path.is_symlink() and path.stat().st_mtime < before]
    if not old:
        return []
    jobs = Job.objects.filter(kind="steering.add_sae").exclude(state__in=Job.ENDED)
    sources = {*SAE.objects.values_list("source", flat=True), *jobs.values_list("params__source", flat=True)}
    used = {Path(source).name for source in sources}
    return [path for path in old if path.name not in used]


def has_abandoned_uploads() -> bool:
    return bool(abandoned_uploads())


def run_prune_uploads(job: RunningJob) -> dict[str, int]:
    """Delete abandoned uploads, such as those of a server that was killed while it stored one."""
    folders = abandoned_uploads()
    for number, folder in enumerate(folders):
        job.progress(number, len(folders), "Deleting folders")
        shutil.rmtree(folder, ignore_errors=True)
        job.log(f"Deleted {folder}.")
    return {"folders": len(folders)}


def _store_archive(opened: IO[bytes]) -> Path:
    try:
        with zipfile.ZipFile(opened) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if len({PurePosixPath(entry.filename).parent for entry in entries}) > 1:
                raise UploadError("The files of the archive must be in one folder.")
            if any(stat.S_IFMT(entry.external_attr >> 16) not in {0, stat.S_IFREG} for entry in entries):
                raise UploadError("The archive must contain regular files only.")
            return _store([_entry(archive, entry) for entry in entries])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise UploadError(f"The archive cannot be read: {error}.") from error


def _entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> UploadedFile:
    return UploadedFile(PurePosixPath(entry.filename).name, entry.file_size, lambda: archive.open(entry))


def _store(files: Sequence[UploadedFile]) -> Path:
    _check(files)
    root = uploads_folder()
    root.mkdir(parents=True, exist_ok=True)
    name = uuid.uuid4().hex
    unfinished = root / f".{name}"
    unfinished.mkdir()
    try:
        for file in files:
            _write(file, unfinished / file.name)
        unfinished.rename(root / name)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return root / name


def _check(files: Sequence[UploadedFile]) -> None:
    if not 1 <= len(files) <= MAX_FILES:
        raise UploadError(f"An SAE must have 1 to {MAX_FILES} files, got {len(files)}.")
    names = [file.name for file in files]
    if len({name.lower() for name in names}) < len(names):
        raise UploadError("Two files have the same name.")
    for name in names:
        if not name.lower().endswith(ENDINGS) or name.startswith(".") or "\\" in name or "\0" in name:
            raise UploadError(
                f"The file {name[:100]!r} cannot belong to an SAE; its name must end with {', '.join(ENDINGS)}."
            )
    if (total := sum(file.size for file in files)) > settings.MILLM_MAX_FILE_BYTES:
        raise UploadError(
            f"The files have {total} bytes; the limit is {settings.MILLM_MAX_FILE_BYTES} (MILLM_MAX_FILE_BYTES)."
        )
    free = shutil.disk_usage(Path(settings.MILLM_HOME)).free
    if free - total < settings.MILLM_MIN_FREE_BYTES:
        raise UploadError("The server's disk is full.", status=507, code="storage_full")


def _write(file: UploadedFile, path: Path) -> None:
    """Copy the content. An archive may hold more than its entry announces, so the size is checked here too."""
    written = 0
    with file.open() as source, path.open("xb") as target:
        while block := source.read(_BLOCK):
            written += len(block)
            if written > file.size:
                raise UploadError(f"The file {file.name!r} is larger than announced.")
            target.write(block)
        target.flush()
        os.fsync(target.fileno())
    path.chmod(0o644)
