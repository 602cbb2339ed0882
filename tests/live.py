"""Server processes that tests start, talk to and stop."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import quote

import psutil
from django.conf import settings

from tests.preloaded import PreloadedProcess

PROJECT_DIR = Path(__file__).resolve().parent.parent
PATIENCE_S = 600.0  # how long a busy machine may take for anything; only a test that fails waits for it
PRELOADS = False  # whether our own programs are forks of a process that has imported torch; benchmarks start real ones
READ_ONCE = (
    "PYTHON",
    "OMP_",
    "TORCH",
    "CUDA_",
    "HF_",
    "TRANSFORMERS_",
)  # variables of Python and of the libraries that are preloaded
SETTINGS: dict[str, str] = {}  # MILLM_ variables of every program, unless its caller names others
if "TEST_ENGINE" in os.environ:  # to run all live tests with another MILLM_ENGINE
    SETTINGS["MILLM_ENGINE"] = os.environ["TEST_ENGINE"]
if "TEST_WORKERS" in os.environ:  # with several web processes
    SETTINGS["MILLM_WORKERS"] = os.environ["TEST_WORKERS"]
SERVES_ON = re.compile(r"miLLM serves on (\S+)")


@dataclass
class LiveServer:
    """A running process. A thread drains its ``output``, so it never blocks on it."""

    process: subprocess.Popen[str] | PreloadedProcess
    environment: Mapping[str, str]
    stdout: IO[str]
    url: str = ""
    lines: list[str] = field(default_factory=list)
    _fresh: queue.Queue[str | None] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def engine(self) -> psutil.Process:
        """The process that computes: the engine's, if it has one of its own."""
        return (self.engines or [psutil.Process(self.pid)])[0]

    @property
    def engines(self) -> list[psutil.Process]:
        """The engine processes that the server started itself."""
        children = [(child, " ".join(child.cmdline()[2:3])) for child in psutil.Process(self.pid).children()]
        return [child for child, name in children if "engine" in name and "ray_driver" not in name]

    def wait_for(self, pattern: str | re.Pattern[str], timeout_s: float = PATIENCE_S) -> re.Match[str]:
        """The first match in a line not looked at before; fails with the output when the process ends without it."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._fresh.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} within {timeout_s} s in:\n{self.output}") from None
            if line is None:
                raise AssertionError(f"ended with {self.process.wait()} before {pattern!r}:\n{self.output}")
            if found := re.search(pattern, line):
                return found

    def manage(self, *arguments: str) -> str:
        """The output of a manage.py command on this server's database and home."""
        return manage(*arguments, environment=self.environment)

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
        """Send a signal and return the exit code; a process that ignores it is killed, and the test fails."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not stop within {timeout_s} s:\n{self.output}") from None

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        with self.stdout:
            for line in self.stdout:
                self.lines.append(line)
                self._fresh.put(line)
        self._fresh.put(None)


def manage(*arguments: str, environment: Mapping[str, str]) -> str:
    """The output of a manage.py command that must succeed."""
    return run_python("manage.py", *arguments, environment={**clean_environment(), **environment})


def manage_all(commands: Iterable[Sequence[str]], *, environment: Mapping[str, str]) -> str:
    """The output of manage.py commands in one process: each process takes seconds of CPU before its command begins."""
    calls = "".join(f"\ncall_command(*{list(command)!r})" for command in commands)
    return manage("shell", "-c", f"from django.core.management import call_command{calls}", environment=environment)


def run_python(*arguments: str, environment: Mapping[str, str]) -> str:
    """The output of a Python program that must succeed, run in the project's folder with this environment."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        code = _process([sys.executable, *arguments], environment, stdout.fileno(), stderr.fileno()).wait()
        stdout.seek(0)
        stderr.seek(0)
        output = stdout.read()
        assert code == 0, output + stderr.read()
        return output


def start(command: list[str], environment: Mapping[str, str]) -> LiveServer:
    """Start ``command`` in the project's folder, on a free port where it serves; stdout and stderr come together."""
    everything = {**clean_environment(), "MILLM_PORT": "0", **environment, "PYTHONUNBUFFERED": "1"}
    reader, writer = os.pipe()
    process = _process(command, everything, writer, writer)
    os.close(writer)
    return LiveServer(process, everything, os.fdopen(reader))


def _process(
    command: list[str], environment: Mapping[str, str], stdout: int, stderr: int
) -> subprocess.Popen[str] | PreloadedProcess:
    """Fork where this is possible."""
    if command[0] == sys.executable and can_fork(environment):
        return PreloadedProcess(command[1:], environment, stdout, stderr)
    return subprocess.Popen(command, cwd=PROJECT_DIR, env=environment, text=True, stdout=stdout, stderr=stderr)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a fork heeds the whole environment: none of what it changes is read only once."""
    return PRELOADS and _read_once(environment) == _read_once(os.environ)


def _read_once(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_ONCE) and name != "PYTHONUNBUFFERED"  # which the fork heeds
    }


@contextmanager
def running(command: list[str], environment: Mapping[str, str]) -> Iterator[LiveServer]:
    server = start(command, environment)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def serving(*arguments: str, environment: Mapping[str, str]) -> Iterator[LiveServer]:
    """``manage.py serve`` on a free port, ready for requests."""
    command = [sys.executable, "manage.py", "serve", *arguments]
    with running(command, environment) as server:
        server.url = server.wait_for(SERVES_ON).group(1)
        yield server


def ended(pid: int, timeout_s: float = 10) -> bool:
    """Whether the process ends within the time. One that nobody reaps, as where PID 1 is no init, has ended too."""
    deadline = time.monotonic() + timeout_s
    while _runs(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def clean_environment() -> dict[str, str]:
    """This process' environment without settings of ours but :data:`SETTINGS`: a server gets those its test names."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MILLM_")} | SETTINGS


def maintenance_url(name: str) -> str:
    """The URL of database ``name`` on the tests' server."""
    place = settings.DATABASES["default"]
    login = quote(place["USER"], safe="") + (f":{quote(place['PASSWORD'], safe='')}" if place["PASSWORD"] else "")
    port = f"&port={place['PORT']}" if place["PORT"] else ""
    return f"postgresql://{login}@/{quote(name, safe='')}?host={quote(place['HOST'], safe='')}{port}"
