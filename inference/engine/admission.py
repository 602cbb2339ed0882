"""When waiting sequences may join the running batch: the difference between the batching modes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inference.engine import request


class Admission(Protocol):
    """A batching mode."""

    def num_allowed(
        self, waiting: Sequence[request.Sequence], running: Sequence[request.Sequence], max_running: int
    ) -> int:
        """How many of the waiting may begin in this step, memory permitting."""

    def seconds_to_wait(self, waiting: Sequence[request.Sequence]) -> float:
        """While nothing runs: seconds until the waiting may begin."""


class ContinuousAdmission:
    """Whoever waits joins as soon as there is a place."""

    def num_allowed(
        self,
        waiting: Sequence[request.Sequence],
        running: Sequence[request.Sequence],
        max_running: int,
    ) -> int:
        return max_running - len(running)

    def seconds_to_wait(self, waiting: Sequence[request.Sequence]) -> float:
        return 0.0


class StaticAdmission:
    """A batch begins when it is full or its first member waited ``timeout_s``, and runs to its end.

    What memory could not take at once joins while the batch's prompts still run; who comes later waits.
    """

    def __init__(self, timeout_s: float, max_running: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._max_running = max_running
        self._clock = clock
        self._batch: set[request.Sequence] = set()

    def num_allowed(
        self, waiting: Sequence[request.Sequence], running: Sequence[request.Sequence], max_running: int
    ) -> int:
        if not running and not self._is_open(waiting):
            self._batch = set()
            if not waiting or self.seconds_to_wait(waiting) > 0:
                return 0
            self._batch = set(waiting[:max_running])
        members = 0
        while members < len(waiting) and waiting[members] in self._batch:
            members += 1
        return min(members, max_running - len(running))

    def seconds_to_wait(self, waiting: Sequence[request.Sequence]) -> float:
        if not waiting or len(waiting) >= self._max_running or self._is_open(waiting):
            return 0.0
        oldest = min(sequence.submitted_at for sequence in waiting)
        return max(0.0, oldest + self._timeout_s - self._clock())

    def _is_open(self, waiting: Sequence[request.Sequence]) -> bool:
        """Whether members of the batch wait still: not begun yet, or preempted."""
        return any(sequence in self._batch for sequence in waiting)
