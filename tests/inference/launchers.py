"""Engine processes of tests: forks of a process that has imported torch, which saves seconds of CPU for each."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import cast

from inference.engine_process.launcher import Launcher, LocalLauncher
from tests import live
from tests.preloaded import PreloadedProcess


class ForkingLauncher(LocalLauncher):
    """Starts processes like LocalLauncher, but as forks."""

    def _start(self, descriptor: int) -> subprocess.Popen[bytes]:
        arguments = [*self._command[1:], str(descriptor)]
        process = PreloadedProcess(arguments, {**os.environ, **self._environment}, 1, 2, inherited=descriptor)
        return cast("subprocess.Popen[bytes]", process)


def forking_launcher(command: tuple[str, ...], environment: Mapping[str, str]) -> Launcher:
    """Return a launcher of forks, or of programs where the environment does not allow forks."""
    can_fork = live.can_fork({**os.environ, **environment})
    return (ForkingLauncher if can_fork else LocalLauncher)(command, environment)
