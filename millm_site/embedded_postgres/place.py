"""Where the server's files are: under MILLM_HOME, unless root starts it and the server's user cannot enter there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from django.db import OperationalError


class EmbeddedPostgresError(OperationalError):
    """The server cannot be started or used; the message says why and what to do."""


SHARED = Path("/var/lib/millm")  # owned by root; every user may enter it


def data_dir_of(home: Path, shared: Path = SHARED) -> Path:
    """Return the data folder of ``home``.

    Root's home is often closed to other users and must stay closed. Then the data is under ``shared``, and
    ``home/postgres`` is a link to it.
    """
    place = home / "postgres"
    if place.is_symlink():
        return place.resolve()
    if os.geteuid() != 0 or place.exists():
        return place
    home.mkdir(parents=True, exist_ok=True)
    if is_open(home):
        return place
    status = home.stat()
    name = f"{home.resolve()}:{status.st_dev}:{status.st_ino}"  # a home that is created again gets new data
    return shared / hashlib.sha256(os.fsencode(name)).hexdigest()[:16] / "postgres"


def is_open(folder: Path) -> bool:
    """Return whether every user may enter ``folder`` and all its parents."""
    return all(place.stat().st_mode & 0o001 for place in (folder.resolve(), *folder.resolve().parents))


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents. Every user can enter the new folders but not list them."""
    if folder.exists():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        folder.chmod(0o711)


def check_shared(folder: Path) -> None:
    """Raise EmbeddedPostgresError if another user could replace the folder's content."""
    status = folder.stat()
    if status.st_uid != 0 or status.st_mode & 0o022:
        raise EmbeddedPostgresError(
            f"{folder} must be owned by root and writable by root only. Correct its permissions, run as an ordinary "
            "user, or set MILLM_HOME to a folder that every user may enter."
        )
