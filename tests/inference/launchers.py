"""Engine processes of tests: forks of a process that has imported torch, which saves seconds of CPU for each."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from typing import cast

from inference.engine_process.channel import Channel
from inference.engine_process.launcher import Launcher, LocalLauncher, LocalProcess
from tests import live
from tests.preloaded import PreloadedProcess


class ForkingLauncher(LocalLauncher):
    """Starts processes like LocalLauncher, but as forks."""

    def __init__(self, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        super().__init__(command, environment)
        self._arguments = command[1:]

    def launch(self) -> LocalProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            process = PreloadedProcess(
                [*self._arguments, str(number)], {**os.environ, **self._environment}, 1, 2, inherited=number
            )
        return LocalProcess(cast("subprocess.Popen[bytes]", process), Channel(ours))


def forking_launcher(command: tuple[str, ...], environment: Mapping[str, str]) -> Launcher:
    """Return a launcher of forks, or of programs where the environment does not allow forks."""
    is_heeded = live.can_fork({**os.environ, **environment})
    return ForkingLauncher(command, environment) if is_heeded else LocalLauncher(command, environment)
