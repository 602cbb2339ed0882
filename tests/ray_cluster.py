"""A Ray cluster of this machine that tests start and end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests import live

STORE_BYTES = 80_000_000  # Ray's minimum, about: we put nothing into it
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class RayNode:
    address: str
    pid: int

    @property
    def engines(self) -> list[psutil.Process]:
        """The engine processes that run on it, the oldest first."""
        found = [each for each in psutil.Process(self.pid).children(recursive=True) if _is_engine(each)]
        return sorted(found, key=lambda each: each.create_time())


def _is_engine(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "EngineActor" in " ".join(process.cmdline())
    return False


@contextmanager
def ray_cluster(num_cpus: int) -> Iterator[RayNode]:
    """Start a node with ``num_cpus``, whatever the machine has."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        node, address = _start(num_cpus, Path(folder))
        try:
            yield RayNode(address, node.pid)
        finally:
            node.send_signal(signal.SIGTERM)
            try:
                node.wait(30)
            except subprocess.TimeoutExpired:
                node.kill()


def _start(num_cpus: int, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a node and return it with its address; again if another process has taken its port meanwhile."""
    for attempt in range(ATTEMPTS):
        address = f"127.0.0.1:{free_port()}"
        options = {
            "--port": address.rpartition(":")[2],
            "--node-ip-address": "127.0.0.1",
            "--num-cpus": str(num_cpus),
            "--object-store-memory": str(STORE_BYTES),
            "--include-dashboard": "false",
            "--temp-dir": str(folder / str(attempt)),
        }
        arguments = [part for option in options.items() for part in option]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
        path = folder / f"log-{attempt}"
        with path.open("w+") as log:
            node = subprocess.Popen(
                [*command, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"},
                start_new_session=True,
            )
        if _has_started(node, path):
            return node, address
    raise AssertionError(path.read_text())


def _has_started(node: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait for the node. Return False if it has ended."""
    deadline = time.monotonic() + live.PATIENCE_S
    while "--block" not in log.read_text():  # its last lines say that the command blocks
        if node.poll() is not None:
            return False
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
