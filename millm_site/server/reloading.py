"""The parent process of the autoreloader: restarts the serving child on request and forwards signals.

Django's parent process kills the child with SIGKILL when it is terminated, which breaks streams and loses log rows.
"""

from __future__ import annotations

import os
import signal
import subprocess
from types import FrameType

from django.utils import autoreload

RELOAD = 3  # exit code with which the child requests a restart


class Supervisor:
    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def run(self) -> int:
        """Run the child until it exits without requesting a restart. Return its exit code, or 0 after a signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
        while not self._is_stopping:
            self._child = subprocess.Popen(autoreload.get_child_arguments(), env=environment)  # noqa: S603 - ourselves
            code = self._child.wait()
            if code != RELOAD and not self._is_stopping:
                return code
        return 0

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Forward SIGTERM. On Ctrl-C the terminal has already sent SIGINT to the child, which has the same effect."""
        self._is_stopping = True
        if self._child is not None and number == signal.SIGTERM:
            self._child.send_signal(signal.SIGTERM)


def supervise() -> int:
    return Supervisor().run()
