"""The system user that the server runs as: PostgreSQL refuses to run as root."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from millm_site.embedded_postgres.place import EmbeddedPostgresError, is_open

SYSTEM_USER = "pgserver"


@dataclass(frozen=True, slots=True)
class Account:
    """``is_other``: the server runs as a different user than this process, which is then root."""

    uid: int
    gid: int
    is_other: bool

    @classmethod
    def for_folder(cls, data_dir: Path) -> Account:
        """Return this process's user; for root, the user that owns the data, or else a system user created for it."""
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid(), is_other=False)
        if data_dir.exists() and data_dir.stat().st_uid != 0:
            status = data_dir.stat()
            return cls(status.st_uid, status.st_gid, is_other=True)
        entry = _system_user()
        return cls(entry.pw_uid, entry.pw_gid, is_other=True)

    def own(self, folder: Path, *, only_if_ours: bool = False) -> None:
        """Make this account the owner of ``folder``. With ``only_if_ours``, only if it is a directory owned by root."""
        status = folder.lstat()
        is_ours = status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode)
        if self.is_other and (is_ours or not only_if_ours):
            os.chown(folder, self.uid, self.gid, follow_symlinks=False)


def can_reach(account: Account, folder: Path) -> bool:
    """Return whether ``account`` may enter ``folder`` and all its parents."""
    return all(_may_enter(account, place.stat()) for place in (folder, *folder.parents))


def can_run(tree: Path) -> bool:
    """Return whether every user may read and run everything in ``tree``. False, for example, for an installation under
    umask 077 or in a home directory."""
    if not is_open(tree):
        return False
    modes = (place.stat().st_mode for place in tree.rglob("*"))
    return all(mode & stat.S_IROTH and (mode & stat.S_IXOTH or not mode & stat.S_IXUSR) for mode in modes)


def _may_enter(account: Account, status: os.stat_result) -> bool:
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _system_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        pass
    command = ["useradd", "--system", "--no-create-home", "--shell", "/bin/false", SYSTEM_USER]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - a constant
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or error
        raise EmbeddedPostgresError(
            f"PostgreSQL does not run as root, and the user {SYSTEM_USER} could not be created "
            f"({str(reason).strip()}). Run as an ordinary user, or set MILLM_DATABASE_URL to a PostgreSQL server."
        ) from error
    return pwd.getpwnam(SYSTEM_USER)
