"""What goes back to readers: each accepted sequence's events, the last of them exactly once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from inference.engine.errors import QueueFullError
from inference.engine.messages import Request
from inference.engine.model_engine import Delivery
from inference.engine.open_sequences import OpenSequences
from inference.engine.throughput import CompletionRate

logger = logging.getLogger(__name__)

Publish = Callable[[list[Delivery]], None]


class Outbox:
    """Takes at most ``capacity`` sequences on at once. Used by the engine thread, by those who submit, and by the
    watchdog's thread.
    """

    def __init__(self, publish: Publish, capacity: int) -> None:
        self._publish = publish
        self._capacity = capacity
        self._open = OpenSequences()
        self._rate = CompletionRate()

    def __len__(self) -> int:
        """Accepted sequences whose reader has no terminal event yet."""
        return len(self._open)

    def admit(self, requests: Sequence[Request], sink: object) -> None:
        """All or none; QueueFullError says when to try again, by the rate at which sequences end."""
        num_open = len(self._open)
        excess = num_open + len(requests) - self._capacity
        if excess > 0:
            text = f"{num_open} requests run or wait already, {self._capacity} at most."
            raise QueueFullError(text, self._rate.seconds_for(excess))
        self._open.add(requests, sink)

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """To those who still wait."""
        passed, num_ended = self._open.let_through(deliveries)
        if num_ended:
            self._rate.note(num_ended)
        if not passed:
            return
        try:
            self._publish(passed)
        except Exception:
            # A broken reader must not take the others with it.
            logger.exception("Events could not be delivered.")

    def fail_all(self, code: str, text: str) -> None:
        """Whoever still waits, whatever became of the sequence."""
        self.deliver(self._open.failures(code, text))
