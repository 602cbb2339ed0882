"""When waiting sequences may join the running batch: the difference between the batching modes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from inference.engine.scheduling import sequence as request


class Admission(Protocol):
    """A batching mode."""

    def candidates(
        self, waiting: Sequence[request.Sequence], running: Sequence[request.Sequence], max_running: int
    ) -> Sequence[request.Sequence]:
        """Return the waiting sequences that may start in this step, memory permitting, in queue order."""

    def seconds_to_wait(self, waiting: Sequence[request.Sequence]) -> float:
        """Return the seconds until waiting sequences may start, while nothing runs."""


class ContinuousAdmission:
    """Continuous batching: waiting sequences join as soon as there is a free slot."""

    def candidates(
        self, waiting: Sequence[request.Sequence], running: Sequence[request.Sequence], max_running: int
    ) -> Sequence[request.Sequence]:
        return waiting[: max(0, max_running - len(running))]

    def seconds_to_wait(self, waiting: Sequence[request.Sequence]) -> float:
        return 0.0


class StaticAdmission:
    """Static batching: a batch starts when it is full or its first member waited ``timeout_s``, and runs to its end.

    Members that memory could not take at once, or that were preempted, join while the batch runs, also when a request
    of higher rank has arrived since. Requests that are not members wait for the end of the batch.
    """

    def __init__(self, timeout_s: float, max_running: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._max_running = max_running
        self._clock = clock
        self._batch: list[request.Sequence] = []  # in queue order

    def candidates(
        self, waiting: Sequence[request.Sequence], running: Sequence[request.Sequence], max_running: int
    ) -> Sequence[request.Sequence]:
        if not running and not self._members():
            self._batch = []
            if not waiting or self.seconds_to_wait(waiting) > 0:
                return []
            self._batch = list(waiting[:max_running])
        return self._members()[: max(0, max_running - len(running))]

    def seconds_to_wait(self, waiting: Sequence[request.Sequence]) -> float:
        if not waiting or len(waiting) >= self._max_running or self._members():
            return 0.0
        oldest = min(sequence.submitted_at for sequence in waiting)
        return max(0.0, oldest + self._timeout_s - self._clock())

    def _members(self) -> list[request.Sequence]:
        """Return the members of the batch that are still waiting: not started, or preempted."""
        return [sequence for sequence in self._batch if sequence.state is request.SequenceState.WAITING]
