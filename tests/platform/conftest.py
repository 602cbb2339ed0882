"""The echo site in our server, on the tests' database server."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests import live

ECHO_COMMAND = [sys.executable, "-m", "tests.platform.echo_server"]
StartEcho = Callable[..., live.LiveServer]


@pytest.fixture
def start_echo(tmp_path: Path) -> Iterator[StartEcho]:
    """``start_echo(MAX_BODY_BYTES=2048)``: an echo server with these settings, stopped after the test."""
    with ExitStack() as stack:

        def start(**variables: object) -> live.LiveServer:
            server = stack.enter_context(live.running(ECHO_COMMAND, environment(tmp_path, variables)))
            server.url = server.wait_for(live.SERVES_ON).group(1)
            return server

        yield start


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[live.LiveServer]:
    """One echo server for a module's tests: body limit 100,000 bytes, all time limits about a second."""
    variables: dict[str, object] = {
        "MAX_BODY_BYTES": 100_000,
        "HEADER_TIMEOUT": 1,
        "IDLE_TIMEOUT": 1,
        "REQUEST_TIMEOUT": 2,
    }
    with live.running(ECHO_COMMAND, environment(tmp_path_factory.mktemp("echo"), variables)) as server:
        server.url = server.wait_for(live.SERVES_ON).group(1)
        yield server


def environment(home: Path, variables: dict[str, object]) -> dict[str, str]:
    named = {f"MILLM_{name}": str(value) for name, value in variables.items()}
    return {"MILLM_HOME": str(home), "MILLM_DATABASE_URL": live.maintenance_url("postgres"), **named}


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder directly in /tmp: pytest's own is closed to other users again by every session that begins."""
    folder = Path(tempfile.mkdtemp(prefix="millm-test-"))
    folder.chmod(0o711)
    yield folder
    if postmaster := postmaster_of(folder):
        postmaster.kill()
        assert live.ended(postmaster.pid)
    shutil.rmtree(folder)


def postmaster_of(home: Path) -> psutil.Process | None:
    """The embedded server that runs in ``home``."""
    pid_file = home / "postgres" / "postmaster.pid"
    try:
        process = psutil.Process(int(pid_file.read_text().split()[0]))
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
    runs = process.name() == "postgres" and process.status() != psutil.STATUS_ZOMBIE
    return process if runs else None
