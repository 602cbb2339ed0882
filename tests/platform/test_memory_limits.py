"""Forty streams on a server that may take little more memory than it has: each gets its last event, and it lives."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests import live
from tests.conftest import site_environment
from tests.platform.test_load_faults import ask, chat
from tests.platform.wire import connected, get, read_all

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(sys.platform != "linux", reason="limits another process' memory"),
]
MEBIBYTE = 2**20
STREAMS = 40
ROOM = 150 * MEBIBYTE
CONTROLLERS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ControlGroup:
    """A group of processes with a memory controller, of version 1 or 2."""

    folder: Path
    limit_file: str
    used_file: str
    cache_field: str

    def used(self) -> int:
        """Bytes, without page cache that the kernel takes back before it kills anybody."""
        rows = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        return int((self.folder / self.used_file).read_text()) - int(rows[self.cache_field])

    def limit(self, size: int | None) -> None:
        unlimited = "max" if self.limit_file == "memory.max" else "-1"
        (self.folder / self.limit_file).write_text(unlimited if size is None else str(size))


@contextmanager
def control_group() -> Iterator[ControlGroup]:
    """A new group inside this process' own; skips the test where none can be made."""
    version_1 = CONTROLLERS / "memory"
    kind = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    parent = version_1 / own_group("memory")
    if not version_1.is_dir():
        kind = ("memory.max", "memory.current", "inactive_file")
        parent = CONTROLLERS / own_group("")
    group = ControlGroup((parent if parent.is_dir() else version_1) / f"millm-test-{os.getpid()}", *kind)
    try:
        group.folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        if not (group.folder / group.limit_file).exists():
            pytest.skip("the control group has no memory controller")
        yield group
    finally:
        with contextlib.suppress(OSError):
            group.folder.rmdir()


def own_group(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return ""


def stream(url: str, seed: int, max_tokens: int) -> str:
    """How the stream ended: by its last event, an error, or not at all."""
    with connected(url, timeout_s=live.PATIENCE_S) as connection:
        connection.sendall(chat("demo", stream=True, max_tokens=max_tokens, ignore_eos=True, seed=seed))
        text = read_all(connection).decode(errors="replace")
    if '"error"' in text:
        return "error"
    return "done" if "data: [DONE]\n" in text else f"no end: {text[-200:]}"


def run_streams(url: str, max_tokens: int = 200) -> Counter[str]:
    with ThreadPoolExecutor(STREAMS) as pool:
        return Counter(pool.map(lambda seed: stream(url, seed, max_tokens), range(STREAMS)))


def assert_it_lives(server: live.LiveServer, ends: Counter[str]) -> None:
    assert server.process.poll() is None, server.output
    assert ends.keys() <= {"done", "error"}
    assert ends["done"] > 0
    assert ask(server.url, chat("demo", max_tokens=5)).status == 200
    assert get(server.url, "/health/ready").status == 200


def test_streams_end_when_the_process_may_hardly_grow(tmp_path: Path, database_url: str) -> None:
    """A thread for each stream took 8 MiB of addresses and more: the 150 ran out, and OpenMP ended the process."""
    with live.serving("--setup", environment=site_environment(database_url, tmp_path)) as server:
        assert ask(server.url, chat("demo", max_tokens=5)).status == 200
        process = psutil.Process(server.pid)
        unlimited = process.rlimit(psutil.RLIMIT_AS)
        process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + ROOM, unlimited[1]))
        assert_it_lives(server, run_streams(server.url))
        process.rlimit(psutil.RLIMIT_AS, unlimited)
        assert server.stop() == 0, server.output


@pytest.mark.parametrize(
    ("variables", "room", "max_tokens"),
    [
        ({}, ROOM, 200),
        ({"MILLM_KV_CACHE_BYTES": str(300 * MEBIBYTE), "MILLM_MAX_BATCH_SIZE": "64"}, 80 * MEBIBYTE, 900),
    ],
    ids=["more than the streams need", "far less than their keys and values would take"],
)
def test_streams_end_under_the_limit_of_a_control_group(
    tmp_path: Path, database_url: str, variables: dict[str, str], room: int, max_tokens: int
) -> None:
    """Lowered while the server runs. In the second case the kernel killed it, when it first wrote keys and values."""
    environment = {**site_environment(database_url, tmp_path), **variables}
    with control_group() as group:
        join = f"echo $$ > {group.folder}/cgroup.procs; exec {sys.executable} manage.py serve --setup"
        with live.running(["/bin/sh", "-c", join], environment) as server:
            server.url = server.wait_for(live.SERVES_ON).group(1)
            assert ask(server.url, chat("demo", max_tokens=5)).status == 200
            group.limit(group.used() + room)
            assert_it_lives(server, run_streams(server.url, max_tokens))
            group.limit(None)
            assert server.stop() == 0, server.output
        for _ in range(100):  # the kernel counts a process out a moment after its end
            if not (group.folder / "cgroup.procs").read_text():
                break
            time.sleep(0.1)
