"""Temporary files for request bodies: in memory while a body is small, then on the disk of MILLM_HOME."""

from __future__ import annotations

import shutil
import tempfile
from typing import IO

from django.conf import settings

IN_MEMORY = 2**17
CHECK_EVERY = 8 * 2**20  # bytes of a body between two checks of the free disk space
SCOPE_KEY = "millm.body"  # key of the ASGI scope under which our server passes the complete body as a file


def new_spool() -> IO[bytes]:
    """Create an unnamed file, which is deleted when it is closed or the process dies."""
    folder = settings.MILLM_HOME / "incoming"
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, dir=str(folder))


def has_room(num_bytes: int) -> bool:
    """Return whether ``num_bytes`` more bytes leave enough disk space for the database."""
    if num_bytes <= IN_MEMORY:
        return True
    home = settings.MILLM_HOME
    return shutil.disk_usage(home if home.exists() else home.anchor).free - num_bytes >= settings.MILLM_MIN_FREE_BYTES
