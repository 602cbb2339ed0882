"""The autoreloader's parent: starts the serving child again when it asks for it, and passes signals on.

Django's own kills the child with SIGKILL when it is itself terminated: streams would break, log rows be lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
from types import FrameType

from django.utils import autoreload

RELOAD = 3  # the child's exit code that asks for a new one


class Supervisor:
    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def run(self) -> int:
        """The last child's exit code, 0 when it was told to stop."""
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
        """Pass SIGTERM on. At Ctrl-C the terminal has sent the child a SIGINT already, which does the same."""
        self._is_stopping = True
        if self._child is not None and number == signal.SIGTERM:
            self._child.send_signal(signal.SIGTERM)


def supervise() -> int:
    return Supervisor().run()
