"""Start engine processes: here, on this machine; :mod:`inference.engine_process.ray_launcher` has Ray place them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import psutil

from inference.engine.errors import EngineDownError
from inference.engine_process.channel import Channel

COMMAND = (sys.executable, "-m", "inference.engine_process")
ROOT = Path(__file__).resolve().parents[2]
GPUS = Path("/proc/driver/nvidia/gpus")


class LaunchError(EngineDownError):
    """An engine process could not be started. The message completes the sentence "The engine process ended with
    ..."."""


class Launched(Protocol):
    """A process that was started, and the connection to it."""

    @property
    def channel(self) -> Channel: ...

    @property
    def pid(self) -> int: ...

    @property
    def place(self) -> str:
        """Where it runs, for people."""

    @property
    def device(self) -> tuple[str, str]:
        """The machine and its GPUs that the process sees. Processes with the same ones share their memory."""

    def wait(self, timeout_s: float | None) -> str | None:
        """Return how the process ended, or None if it has not ended after ``timeout_s``."""

    def kill(self) -> None:
        """End the process at once. Idempotent."""


class Launcher(Protocol):
    def launch(self) -> Launched:
        """Start a process. Raise LaunchError."""

    def close(self) -> None:
        """Make a launch in progress, and all later ones, fail. Callable from any thread."""


class LocalLauncher:
    """Starts processes of this machine, with a socket pair that only both ends have."""

    def __init__(self, command: tuple[str, ...] | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._command = command or COMMAND
        self._environment = dict(environment or {})

    def launch(self) -> LocalProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            process = self._start(theirs.fileno())
        return LocalProcess(process, Channel(ours), self._environment.get("CUDA_VISIBLE_DEVICES", ""))

    def _start(self, descriptor: int) -> subprocess.Popen[bytes]:
        """Start the program with its end of the connection."""
        return subprocess.Popen(  # noqa: S603 - ourselves
            [*self._command, str(descriptor)],
            cwd=ROOT,
            env={**os.environ, **self._environment, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            process_group=0,  # Ctrl-C is for the server; in its session, or niceness would not count between them
        )

    def close(self) -> None:
        """A launch takes no time."""


class LocalProcess:
    """A process of this machine."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, gpus: str = "") -> None:
        self._process = process
        self._gpus = gpus
        self.channel = channel

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def place(self) -> str:
        return f"process {self.pid}"

    @property
    def device(self) -> tuple[str, str]:
        return socket.gethostname(), self._gpus

    def wait(self, timeout_s: float | None) -> str | None:
        try:
            return describe_exit(self._process.wait(timeout_s))
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self._process.kill()


def describe_exit(code: int) -> str:
    """Return an exit code in words. Negative codes are those of signals."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name} (the system ends processes that use too much memory)" if name == "SIGKILL" else name


def share_of_machine(number: int, count: int) -> dict[str, str]:
    """Return the environment of the ``number``-th of ``count`` processes: its GPU, and its threads on a CPU.

    One of several gets one GPU, in turn, and an equal number of the processors, unless OMP_NUM_THREADS is set.
    """
    if count == 1:
        return {}
    gpus = visible_gpus()
    share = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}
    if "OMP_NUM_THREADS" not in os.environ:
        share["OMP_NUM_THREADS"] = str(max(1, (psutil.cpu_count() or 1) // count))
    return share


def visible_gpus() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES may name, without torch."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [each.strip() for each in given.split(",") if each.strip()]
    return [str(number) for number in range(len(list(GPUS.iterdir())))] if GPUS.is_dir() else []
