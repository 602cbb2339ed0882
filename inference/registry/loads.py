"""Pending loads (queued, running or waiting for memory) with their progress, and failed loads with their next retry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.conf import settings

from inference.files.downloads import WatchedDownload
from inference.registry.model_card import ModelNotReadyError
from inference.registry.records import ModelRecord

RETRY_LOADING_AFTER_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class PendingLoad:
    """A load that was requested. ``begun_at`` is a time of the registry's clock. ``done`` resolves when the load ends,
    with or without a model.
    """

    record: ModelRecord
    begun_at: float
    done: Future[None] = field(default_factory=Future)


class PendingLoads:
    """Pending loads, at most one per model. Thread-safe. Only the loader thread postpones or abandons loads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_name: dict[str, PendingLoad] = {}
        self._postponed: set[str] = set()  # tried, and waiting for memory
        self._num_waiting = 0

    def begin(self, record: ModelRecord, *, unless: Callable[[], bool]) -> tuple[PendingLoad | None, bool]:
        """Return the model's load and whether it is new. Returns None if there is none and ``unless()`` holds."""
        with self._lock:
            running = self._by_name.get(record.name)
            if running is not None:
                return running, False
            if unless():
                return None, False
            load = self._by_name[record.name] = PendingLoad(record, self._clock())
            return load, True

    def forget(self, load: PendingLoad) -> None:
        with self._lock:
            self._by_name.pop(load.record.name, None)
            self._postponed.discard(load.record.name)

    def end(self, load: PendingLoad) -> None:
        self.forget(load)
        load.done.set_result(None)

    def age_s(self, load: PendingLoad) -> float:
        return self._clock() - load.begun_at

    def postpone(self, load: PendingLoad) -> None:
        """Mark the load as tried. It is tried again unless it is abandoned first."""
        self._postponed.add(load.record.name)

    def abandon(self, name: str) -> None:
        """End a postponed load of the model, so that requests waiting for it fail."""
        if name in self._postponed:
            self.end(self._by_name[name])

    def get(self, name: str) -> PendingLoad | None:
        return self._by_name.get(name)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the caller among the waiting requests. Raise ModelNotReadyError if there are too many."""
        with self._lock:
            if self._num_waiting >= settings.MILLM_MAX_WAITING_REQUESTS:
                message = f"{self._num_waiting} requests are already waiting for models to load; try again soon."
                raise ModelNotReadyError(message, RETRY_LOADING_AFTER_S)
            self._num_waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_waiting -= 1


FIRST_RETRY_S = 10.0
LONGEST_RETRY_S = 300.0


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """The last failure of a model, the ``count``-th in a row. ``retry_at`` is a time of the registry's clock."""

    message: str
    retry_at: float
    count: int


class LoadFailures:
    """Failures by model name. The retry delay doubles with each failure in a row. Written by the loader thread only."""

    def __init__(self, clock: Callable[[], float], first_retry_s: float = FIRST_RETRY_S) -> None:
        self._clock = clock
        self._first_retry_s = first_retry_s
        self._failures: dict[str, LoadFailure] = {}

    def note(self, name: str, message: str) -> None:
        last = self._failures.get(name)
        count = 1 if last is None else last.count + 1
        pause = min(self._first_retry_s * 2 ** (count - 1), LONGEST_RETRY_S)
        self._failures[name] = LoadFailure(message, self._clock() + pause, count)

    def forget(self, name: str) -> None:
        self._failures.pop(name, None)

    def get(self, name: str) -> LoadFailure | None:
        return self._failures.get(name)

    def is_recent(self, name: str) -> bool:
        """Return whether it is too early to retry."""
        failure = self._failures.get(name)
        return failure is not None and failure.retry_at > self._clock()


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The current ``phase``, for ``for_s`` seconds now, and the bytes of a download (0 of 0 without one)."""

    phase: str
    for_s: float
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """State of a load. ``is_waiting``: for its turn or for memory. ``retry_in_s``: after a failure, the time until
    requests load the model again; otherwise None.
    """

    progress: LoadProgress | None = None
    is_waiting: bool = False
    retry_in_s: float | None = None


@dataclass(slots=True)
class RunningLoad:
    """A load that the loader thread is working on."""

    clock: Callable[[], float]
    download: WatchedDownload = field(default_factory=WatchedDownload)
    _phase: str = "finding files"
    _since: float = 0.0

    def __post_init__(self) -> None:
        self._since = self.clock()

    def enter(self, phase: str) -> None:
        self._phase, self._since = phase, self.clock()

    def progress(self) -> LoadProgress:
        return LoadProgress(self._phase, self.clock() - self._since, self.download.done, self.download.total)


class RunningLoads:
    """Running loads by model name. Readable by any thread: each method is one dictionary operation."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_name: dict[str, RunningLoad] = {}

    @contextmanager
    def track(self, name: str) -> Iterator[RunningLoad]:
        """Register the model's load while the block runs."""
        load = self._by_name[name] = RunningLoad(self._clock)
        try:
            yield load
        finally:
            self._by_name.pop(name, None)

    def get(self, name: str) -> LoadProgress | None:
        load = self._by_name.get(name)
        return None if load is None else load.progress()
