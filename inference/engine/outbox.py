"""Events on their way to clients: every accepted sequence gets exactly one terminal event."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from inference.engine.errors import QueueFullError
from inference.engine.messages import TERMINAL_EVENTS, Counts, Delivery, FailedEvent, Request, is_background

logger = logging.getLogger(__name__)
WINDOW_S = 30.0
UNKNOWN_S = 1.0
LONGEST_S = 60.0
Publish = Callable[[list[Delivery]], None]


class OpenSequences:
    """Passes exactly one terminal event of each sequence on, and nothing after it. Thread-safe.

    A sequence is known by its sink, which must be hashable, and its index. Its event may come from the engine thread
    or, if that hangs, from the watchdog; the second one is dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_sink: dict[object, dict[int, Request]] = {}
        self._count = 0
        self._num_background = 0

    def __len__(self) -> int:
        return self._count

    def counts(self) -> Counts:
        with self._lock:
            return Counts(self._count, self._num_background)

    def add(self, requests: Sequence[Request], sink: object) -> None:
        """Register sequences. Raise ValueError if the sink already has one of the indices."""
        with self._lock:
            known = self._by_sink.get(sink, {})
            fresh = {request.index: request for request in requests}
            if len(fresh) < len(requests) or not known.keys().isdisjoint(fresh):
                raise ValueError("The sequences of a sink must have different indices.")
            self._by_sink.setdefault(sink, {}).update(fresh)
            self._count += len(fresh)
            self._num_background += sum(is_background(request) for request in requests)

    def filter_open(self, deliveries: Sequence[Delivery]) -> tuple[list[Delivery], int]:
        """Return the deliveries to open sequences, and how many sequences their terminal events closed."""
        passed: list[Delivery] = []
        with self._lock:
            before = self._count
            for sink, event in deliveries:
                indices = self._by_sink.get(sink)
                if indices is None or event.index not in indices:
                    continue
                passed.append((sink, event))
                if isinstance(event, TERMINAL_EVENTS):
                    self._close(sink, indices, event.index)
            return passed, before - self._count

    def failures(self, code: str, message: str) -> list[Delivery]:
        """Return a failure for each open sequence; pass them to :meth:`filter_open`."""
        with self._lock:
            return [
                (sink, FailedEvent.before_start(request, code, message))
                for sink, requests in self._by_sink.items()
                for request in requests.values()
            ]

    def _close(self, sink: object, indices: dict[int, Request], index: int) -> None:
        self._num_background -= is_background(indices.pop(index))
        self._count -= 1
        if not indices:
            del self._by_sink[sink]


class CompletionRate:
    """Completions of the last ``WINDOW_S`` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=4096)

    def note(self, count: int) -> None:
        now = self._clock()
        self._ends.extend([now] * count)

    def seconds_for(self, count: int) -> float:
        """Return the expected seconds until ``count`` requests have ended, 1 to 60."""
        now = self._clock()
        while self._ends and self._ends[0] < now - WINDOW_S:
            self._ends.popleft()
        if not self._ends:
            return UNKNOWN_S
        rate = len(self._ends) / max(now - self._ends[0], 0.1)
        return min(max(count / rate, 1.0), LONGEST_S)


class Outbox:
    """Accepts at most ``capacity`` sequences at once.

    Used by the engine thread, by threads that submit, and by the watchdog's thread.
    """

    def __init__(self, publish: Publish, capacity: int) -> None:
        self._publish = publish
        self._capacity = capacity
        self._open = OpenSequences()
        self._rate = CompletionRate()

    def __len__(self) -> int:
        """Return the number of accepted sequences without a terminal event."""
        return len(self._open)

    def counts(self) -> Counts:
        """Return the number of accepted sequences without a terminal event."""
        return self._open.counts()

    def admit(self, requests: Sequence[Request], sink: object) -> None:
        """Accept all requests or none. QueueFullError says when to retry, by the rate at which sequences end."""
        num_open = len(self._open)
        excess = num_open + len(requests) - self._capacity
        if excess > 0:
            text = f"{num_open} requests are running or waiting; the limit is {self._capacity}."
            raise QueueFullError(text, self._rate.seconds_for(excess))
        self._open.add(requests, sink)

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Publish the events of sequences that are still open."""
        passed, num_ended = self._open.filter_open(deliveries)
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
        """Fail every open sequence."""
        self.deliver(self._open.failures(code, text))
