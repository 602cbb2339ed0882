"""Watch the engine thread: replace a dead one, abandon a hanging one, and fail what was pending.

A thread that turns without making progress on pending work is ended, and then replaced like a dead one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)

POLL_S = 0.25
ENOUGH_TURNS = 3  # without progress: the thread does not hang, but is stuck


class WatchedLoop(Protocol):
    """The part of :class:`inference.engine.loop.EngineLoop` that the watchdog uses."""

    @property
    def heartbeat(self) -> int:
        """Counter that grows whenever the thread makes progress or is idle."""

    @property
    def turns(self) -> int:
        """Counter that grows with every turn, also without progress."""

    @property
    def has_pending_work(self) -> bool:
        """Whether the thread has work and is not busy attaching a model."""

    @property
    def has_died(self) -> bool: ...

    @property
    def error(self) -> str: ...

    def abandon(self, error: str) -> None:
        """Fail all pending work and accept no more requests."""

    def restart(self) -> bool:
        """Replace a dead thread. Return False if that is unsafe or was done too often."""

    def break_off(self) -> None:
        """Make a thread that still turns raise at its next turn."""


class Watchdog:
    """Checks the loop every ``poll_s`` seconds. Calls ``on_failure`` once, with the cause, when the engine is lost.

    ``stall_s`` is how long the thread may be silent while it has work: longer than its longest step.
    """

    def __init__(
        self,
        loop: WatchedLoop,
        *,
        stall_s: float,
        on_failure: Callable[[str], None],
        poll_s: float = POLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._stall_s = stall_s
        self._on_failure = on_failure
        self._poll_s = poll_s
        self._clock = clock
        self._looked_at = clock()
        self._heartbeat = loop.heartbeat
        self._turns = loop.turns  # when it last made progress
        self._silent_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, before the engine is stopped on purpose."""
        self._over.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(5)

    def look(self) -> None:
        """Check the thread once. The watchdog's own thread calls this repeatedly."""
        if self._loop.has_died:
            self._replace()
        elif self._is_silent():
            if self._loop.turns - self._turns >= ENOUGH_TURNS:
                self._break_off()
            else:
                self._lose(f"The engine thread has not responded for {self._stall_s:g} s (MILLM_ENGINE_STALL_SECONDS).")

    def _is_silent(self) -> bool:
        now, heartbeat = self._clock(), self._loop.heartbeat
        # A process that was itself stopped for a while (SIGSTOP, a suspended machine) did not watch during that time.
        watched_s = min(now - self._looked_at, 2 * self._poll_s)
        self._looked_at = now
        is_quiet = self._loop.has_pending_work and heartbeat == self._heartbeat
        self._silent_s = self._silent_s + watched_s if is_quiet else 0.0
        self._heartbeat = heartbeat
        if not is_quiet:
            self._turns = self._loop.turns
        return self._silent_s > self._stall_s

    def _break_off(self) -> None:
        logger.error("The engine thread has run for %g s without progress on pending work.", self._stall_s)
        self._silent_s, self._turns = 0.0, self._loop.turns
        self._loop.break_off()

    def _replace(self) -> None:
        error = self._loop.error or "The engine thread ended."
        self._loop.abandon(error)
        if self._loop.restart():
            logger.error("%s Restarting the thread; its models stay loaded.", error)
        else:
            self._lose(error)

    def _lose(self, error: str) -> None:
        logger.critical("%s The engine cannot recover; restart the process.", error)
        self._over.set()
        self._loop.abandon(error)
        self._on_failure(error)

    def _run(self) -> None:
        while not self._over.wait(self._poll_s):
            self.look()
