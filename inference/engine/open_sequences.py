"""Which accepted sequences still owe their reader a terminal event."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from inference.engine.messages import TERMINAL_EVENTS, FailedEvent, Request
from inference.engine.model_engine import Delivery


class OpenSequences:
    """Lets exactly one terminal event of each sequence through, and nothing after it. Thread-safe.

    A sequence is known by its sink, which must be hashable, and its index. Its event may come from the engine thread
    or, when that hangs, from the watchdog: whoever is second finds it closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_sink: dict[object, dict[int, Request]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, requests: Sequence[Request], sink: object) -> None:
        """ValueError when one of the sink's sequences has such an index already."""
        with self._lock:
            known = self._by_sink.get(sink, {})
            fresh = {request.index: request for request in requests}
            if len(fresh) < len(requests) or not known.keys().isdisjoint(fresh):
                raise ValueError("The sequences of one sink need different indices.")
            self._by_sink[sink] = {**known, **fresh}
            self._count += len(fresh)

    def let_through(self, deliveries: Sequence[Delivery]) -> tuple[list[Delivery], int]:
        """The deliveries to sequences that are open, which terminal ones close, and how many they closed."""
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
        """A terminal event for each that is open; pass them to :meth:`let_through`."""
        with self._lock:
            return [
                (sink, FailedEvent.before_start(request, code, message))
                for sink, requests in self._by_sink.items()
                for request in requests.values()
            ]

    def _close(self, sink: object, indices: dict[int, Request], index: int) -> None:
        del indices[index]
        self._count -= 1
        if not indices:
            del self._by_sink[sink]
