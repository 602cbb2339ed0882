"""How far the load at hand is: read by pages, written by the loader thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from inference.watched_download import WatchedDownload


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """``phase`` says what is done now, for ``for_s`` seconds; bytes are those of a download, 0 of 0 without one."""

    phase: str
    for_s: float
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadStanding:
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
