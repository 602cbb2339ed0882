"""Loads that are queued, run or wait for room, and those who wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.conf import settings

from inference.readiness import ModelNotReadyError
from inference.records import ModelRecord

RETRY_LOADING_AFTER_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """``begun_at`` is a reading of the registry's clock. ``done`` has no result but the time: look what there is."""

    record: ModelRecord
    begun_at: float
    done: Future[None] = field(default_factory=Future)


class Loads:
    """At most one for each model. Thread-safe; loads are postponed and given up by the loader thread only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_name: dict[str, Load] = {}
        self._postponed: set[str] = set()  # tried, and waiting for room
        self._num_waiting = 0

    def begin(self, record: ModelRecord, *, unless: Callable[[], bool]) -> tuple[Load | None, bool]:
        """The model's load and whether it is new. None ``unless`` there is one, or need for one."""
        with self._lock:
            running = self._by_name.get(record.name)
            if running is not None:
                return running, False
            if unless():
                return None, False
            load = self._by_name[record.name] = Load(record, self._clock())
            return load, True

    def forget(self, load: Load) -> None:
        with self._lock:
            self._by_name.pop(load.record.name, None)
            self._postponed.discard(load.record.name)

    def end(self, load: Load) -> None:
        self.forget(load)
        load.done.set_result(None)

    def age_s(self, load: Load) -> float:
        return self._clock() - load.begun_at

    def postpone(self, load: Load) -> None:
        """It has been tried and will be tried again, unless it is given up meanwhile."""
        self._postponed.add(load.record.name)

    def give_up(self, name: str) -> None:
        """Whoever waits for a postponed load of the model learns that there is none."""
        if name in self._postponed:
            self.end(self._by_name[name])

    def get(self, name: str) -> Load | None:
        return self._by_name.get(name)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Bounds those who wait for loads, whatever they wait for; ModelNotReadyError for one too many."""
        with self._lock:
            if self._num_waiting >= settings.MILLM_MAX_WAITING_REQUESTS:
                message = f"{self._num_waiting} requests wait for models to load already; try again soon."
                raise ModelNotReadyError(message, RETRY_LOADING_AFTER_S)
            self._num_waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_waiting -= 1
