"""Whether the engine accepts requests, and how it came to an end: told by its thread, its owner and its watchdog."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from inference.engine.errors import EngineDownError
from inference.engine.stats import EngineState

MAX_RESTARTS = 3  # in RESTART_WINDOW_S: a thread that dies more often is better off in a new process
RESTART_WINDOW_S = 3600.0


class EngineLifecycle:
    """One lock guards the state and the order of submissions against the end: what is accepted is seen by the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state: EngineState = "stopped"
        self._error = ""
        self._deadline: float | None = None
        self._restarts = 0
        self._restarted_at: list[float] = []
        self._is_abandoned = False  # the thread hangs; should it wake up, it ends
        self._is_device_lost = False

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def error(self) -> str:
        return self._error

    @property
    def restarts(self) -> int:
        """Since the start of the process."""
        return self._restarts

    @property
    def is_abandoned(self) -> bool:
        return self._is_abandoned

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """While this is open, the engine does not end. EngineDownError unless it accepts requests."""
        with self._lock:
            if self._state not in {"idle", "running"}:
                raise EngineDownError(self._error or f"The engine is {self._state}.")
            yield

    def begin(self) -> None:
        """Accept requests, unless the engine was told to stop meanwhile."""
        with self._lock:
            self._error = ""
            self._state = "idle" if self._deadline is None else "draining"

    def note_work(self, *, busy: bool) -> None:
        with self._lock:
            if self._state in {"idle", "running"}:
                self._state = "running" if busy else "idle"

    def drain(self, seconds: float) -> float:
        """Accept nothing more; returns when the time is up, by ``time.monotonic()``."""
        with self._lock:
            if self._state in {"idle", "running"}:
                self._state = "draining"
            deadline = time.monotonic() + seconds
            self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
            return deadline

    def is_over(self, *, has_work: bool) -> bool:
        """Whether the thread shall end now."""
        if self._is_abandoned:
            return True
        if self._state != "draining":
            return False
        return not has_work or (self._deadline is not None and time.monotonic() >= self._deadline)

    def note_death(self, error: BaseException) -> None:
        """What killed the thread; its end follows."""
        self._is_device_lost = isinstance(error, torch.AcceleratorError)
        self._error = f"The engine died: {type(error).__name__}."

    def end(self, state: EngineState) -> bool:
        """Nothing is accepted any more. False where the watchdog has given the engine up before."""
        with self._lock:
            if self._is_abandoned:
                return False
            self._state = state
            return True

    def abandon(self, error: str, *, hangs: bool) -> None:
        """The watchdog's end. A thread that ``hangs`` must not go on should it wake up."""
        with self._lock:
            self._state, self._error = "failed", error
            self._is_abandoned = hangs

    def may_restart(self) -> bool:
        """Whether a dead thread may be replaced, which it may MAX_RESTARTS times an hour; if so, it counts as done."""
        with self._lock:
            now = self._clock()
            recent = [at for at in self._restarted_at if now - at < RESTART_WINDOW_S]
            is_lost = self._is_abandoned or self._is_device_lost
            if is_lost or self._deadline is not None or len(recent) >= MAX_RESTARTS:
                return False
            self._restarted_at = [*recent, now]
            self._restarts += 1
            return True
