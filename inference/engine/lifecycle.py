"""Whether the engine accepts requests, and how it ended. Updated by its thread, its owner and its watchdog."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from inference.engine.errors import EngineDownError
from inference.engine.stats import EngineState

MAX_RESTARTS = 3  # in RESTART_WINDOW_S; a thread that dies more often needs a new process
RESTART_WINDOW_S = 3600.0


class EngineLifecycle:
    """The engine's state. One lock orders submissions against the end, so the end sees every accepted request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state: EngineState = "stopped"
        self._error = ""
        self._deadline: float | None = None
        self._restarts = 0
        self._restarted_at: list[float] = []
        self._is_abandoned = False  # the thread hangs; if it wakes up, it ends
        self._is_device_lost = False

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def error(self) -> str:
        return self._error

    @property
    def restarts(self) -> int:
        """Number of restarts since the process started."""
        return self._restarts

    @property
    def is_abandoned(self) -> bool:
        return self._is_abandoned

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """Keep the engine from ending inside the block. Raise EngineDownError if it does not accept requests."""
        with self._lock:
            if self._state not in {"idle", "running"}:
                raise EngineDownError(self._error or f"The engine is {self._state}.")
            yield

    def begin(self) -> None:
        """Accept requests, unless the engine was stopped meanwhile."""
        with self._lock:
            self._error = ""
            self._state = "idle" if self._deadline is None else "draining"

    def note_work(self, *, busy: bool) -> None:
        with self._lock:
            if self._state in {"idle", "running"}:
                self._state = "running" if busy else "idle"

    def drain(self, seconds: float) -> float:
        """Accept nothing more. Return the deadline as ``time.monotonic()``."""
        with self._lock:
            if self._state in {"idle", "running"}:
                self._state = "draining"
            deadline = time.monotonic() + seconds
            self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
            return deadline

    def is_over(self, *, has_work: bool) -> bool:
        """Return whether the thread must end now."""
        if self._is_abandoned:
            return True
        if self._state != "draining":
            return False
        return not has_work or (self._deadline is not None and time.monotonic() >= self._deadline)

    def note_death(self, error: BaseException) -> None:
        """Record the error that killed the thread; :meth:`end` follows."""
        self._is_device_lost = isinstance(error, torch.AcceleratorError)
        self._error = f"The engine thread crashed: {type(error).__name__}."

    def end(self, state: EngineState) -> bool:
        """Stop accepting requests. Return False if the watchdog has abandoned the engine before."""
        with self._lock:
            if self._is_abandoned:
                return False
            self._state = state
            return True

    def abandon(self, error: str, *, hangs: bool) -> None:
        """End the engine from the watchdog. A thread that ``hangs`` must not continue if it wakes up."""
        with self._lock:
            self._state, self._error = "failed", error
            self._is_abandoned = hangs

    def may_restart(self) -> bool:
        """Return whether a dead thread may be replaced (MAX_RESTARTS times an hour), and count the restart if so."""
        with self._lock:
            now = self._clock()
            recent = [at for at in self._restarted_at if now - at < RESTART_WINDOW_S]
            is_lost = self._is_abandoned or self._is_device_lost
            if is_lost or self._deadline is not None or len(recent) >= MAX_RESTARTS:
                return False
            self._restarted_at = [*recent, now]
            self._restarts += 1
            return True
