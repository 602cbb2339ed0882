"""Watches the engine thread: a dead one is replaced, a hanging one is given up, and nobody waits for either.

A thread that turns without doing anything for those who wait is ended, and then replaced as a dead one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)

POLL_S = 0.25
ENOUGH_TURNS = 3  # without anything done: it does not hang, but is stuck


class WatchedLoop(Protocol):
    """What the watchdog needs of :class:`inference.engine.loop.EngineLoop`."""

    @property
    def heartbeat(self) -> int:
        """Grows whenever the thread does something, or has nothing to do."""

    @property
    def turns(self) -> int:
        """Grows with every turn of the thread, also with one that does nothing."""

    @property
    def has_pending_work(self) -> bool:
        """Whether someone waits for the thread, and it is not busy taking in a model."""

    @property
    def has_died(self) -> bool: ...

    @property
    def error(self) -> str: ...

    def abandon(self, error: str) -> None:
        """Fail everyone who waits, and accept nothing any more."""

    def restart(self) -> bool:
        """Replace a dead thread; False where that is not safe or was done too often."""

    def break_off(self) -> None:
        """Let a thread that still turns die at its next turn."""


class Watchdog:
    """Looks every ``poll_s`` seconds. ``on_failure`` is called once, with the cause, when the engine is lost for good.

    ``stall_s`` is how long the thread may be silent while it owes work: longer than its longest single step.
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
        self._turns = loop.turns  # when it was last seen to do something
        self._silent_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Look away, before the engine is stopped on purpose."""
        self._over.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(5)

    def look(self) -> None:
        """Examine the thread once; what the watchdog's own thread does over and over."""
        if self._loop.has_died:
            self._replace()
        elif self._is_silent():
            if self._loop.turns - self._turns >= ENOUGH_TURNS:
                self._break_off()
            else:
                self._lose(f"The engine thread has not moved for {self._stall_s:g} s (MILLM_ENGINE_STALL_SECONDS).")

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
        logger.error("The engine thread turned for %g s without doing anything for those who wait.", self._stall_s)
        self._silent_s, self._turns = 0.0, self._loop.turns
        self._loop.break_off()

    def _replace(self) -> None:
        error = self._loop.error or "The engine thread ended."
        self._loop.abandon(error)
        if self._loop.restart():
            logger.error("%s It is replaced; its models stay loaded.", error)
        else:
            self._lose(error)

    def _lose(self, error: str) -> None:
        logger.critical("%s The engine is lost; restart the process.", error)
        self._over.set()
        self._loop.abandon(error)
        self._on_failure(error)

    def _run(self) -> None:
        while not self._over.wait(self._poll_s):
            self.look()
