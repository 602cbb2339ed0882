"""Loads that are queued, run or wait for memory, how far they are, and those that failed and when to retry them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.conf import settings

from inference.files.downloads import WatchedDownload
from inference.registry.ready_model import ModelNotReadyError
from inference.registry.records import ModelRecord

RETRY_LOADING_AFTER_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class PendingLoad:
    """``begun_at`` is a reading of the registry's clock. ``done`` has no result but the time: look what there is."""

    record: ModelRecord
    begun_at: float
    done: Future[None] = field(default_factory=Future)


class PendingLoads:
    """At most one for each model. Thread-safe; loads are postponed and given up by the loader thread only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_name: dict[str, PendingLoad] = {}
        self._postponed: set[str] = set()  # tried, and waiting for room
        self._num_waiting = 0

    def begin(self, record: ModelRecord, *, unless: Callable[[], bool]) -> tuple[PendingLoad | None, bool]:
        """The model's load and whether it is new. None ``unless`` there is one, or need for one."""
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
        """It has been tried and will be tried again, unless it is given up meanwhile."""
        self._postponed.add(load.record.name)

    def give_up(self, name: str) -> None:
        """Fail the requests that wait for a postponed load of the model."""
        if name in self._postponed:
            self.end(self._by_name[name])

    def get(self, name: str) -> PendingLoad | None:
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


FIRST_RETRY_S = 10.0
LONGEST_RETRY_S = 300.0


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """``retry_at`` is a reading of the registry's clock."""

    message: str
    retry_at: float
    count: int


class LoadFailures:
    """By model name; the pause doubles with each failure in a row. Only the loader thread notes, anyone may read."""

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
        """Whether it is too early to try again."""
        failure = self._failures.get(name)
        return failure is not None and failure.retry_at > self._clock()


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """``phase`` says what is done now, for ``for_s`` seconds; bytes are those of a download, 0 of 0 without one."""

    phase: str
    for_s: float
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """``is_waiting``: for its turn, or for room. ``retry_in_s``: after a failure, when a request loads it again; None
    without one.
    """

    progress: LoadProgress | None = None
    is_waiting: bool = False
    retry_in_s: float | None = None


@dataclass(slots=True)
class RunningLoad:
    """A load from the moment at which the thread takes it up."""

    clock: Callable[[], float]
    download: WatchedDownload = field(default_factory=WatchedDownload)
    _phase: str = "looking for its files"
    _since: float = 0.0

    def __post_init__(self) -> None:
        self._since = self.clock()

    def enter(self, phase: str) -> None:
        self._phase, self._since = phase, self.clock()

    def progress(self) -> LoadProgress:
        return LoadProgress(self._phase, self.clock() - self._since, self.download.done, self.download.total)


class RunningLoads:
    """By model name. Each method is one step on a dictionary, so any thread may read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_name: dict[str, RunningLoad] = {}

    @contextmanager
    def one(self, name: str) -> Iterator[RunningLoad]:
        """The load of the model, for as long as it runs."""
        load = self._by_name[name] = RunningLoad(self._clock)
        try:
            yield load
        finally:
            self._by_name.pop(name, None)

    def get(self, name: str) -> LoadProgress | None:
        load = self._by_name.get(name)
        return None if load is None else load.progress()
