"""Values read from the database, kept in this process and refreshed when some process changes them.

A writer calls :meth:`Snapshot.invalidate` inside its transaction: at commit this process reloads the value before
``on_commit`` returns, and PostgreSQL notifies the other processes, whose listener thread reloads theirs. Reading a
warm snapshot touches no database, so request handling goes on while PostgreSQL is away.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from django.db import close_old_connections, connection, transaction

logger = logging.getLogger(__name__)
T = TypeVar("T")
_TOKEN = uuid.uuid4().hex
_snapshots: weakref.WeakSet[Snapshot[Any]] = weakref.WeakSet()


class Snapshot(Generic[T]):
    """One value, loaded by ``load`` (synchronous ORM code) and invalidated on the PostgreSQL channel ``channel``.

    In a process without a running listener (commands) only this process' own writes refresh the value.
    """

    def __init__(self, channel: str, load: Callable[[], T]) -> None:
        self.channel = channel
        self._load = load
        self._value: tuple[T] | None = None  # boxed, so that None can be a value
        self._loading = threading.Lock()
        self._counting = threading.Lock()
        self._wanted = 0  # tickets of refreshes asked for
        self._done = 0  # the newest ticket that the value satisfies
        self._writer = threading.local()
        _snapshots.add(self)

    def get(self) -> T:
        """The value; loads it on first use. Safe in async code: a cold value is then loaded by another thread."""
        if self._has_uncommitted_writes():
            return self._load()
        box = self._value
        if box is not None:
            return box[0]
        return _run_off_loop(self.refresh) if _in_event_loop() else self.refresh()

    async def aget(self) -> T:
        """Like :meth:`get`, waiting for a cold value without blocking the event loop."""
        box = self._value
        return box[0] if box is not None else await asyncio.to_thread(_with_own_connection, self.refresh)

    def refresh(self) -> T:
        """Load the value again. Concurrent callers share a load that began after they asked."""
        ticket = self.mark_stale()
        with self._loading:
            if self._done < ticket or self._value is None:
                started = self._wanted
                self._value = (self._load(),)
                self._done = started
            return self._value[0]

    def invalidate(self) -> None:
        """Tell every process at commit (at once outside a transaction) that the value changed."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [self.channel, process_token()])
        self._writer.is_writing = True
        transaction.on_commit(self._refresh_after_commit)

    def forget(self) -> None:
        """Drop the value; the next reader loads it."""
        self._value = None
        self._writer = threading.local()

    @property
    def is_stale(self) -> bool:
        """Whether a change was announced that the value does not show yet; readers keep the old one until then."""
        return self._done < self._wanted

    def mark_stale(self) -> int:
        """Announce a change; the listener reloads. Returns the ticket of the announcement."""
        with self._counting:
            self._wanted += 1
            return self._wanted

    def give_up(self) -> None:
        """Keep the old value until the next change: loading fails for a reason that a retry does not cure."""
        self._done = self._wanted

    def _refresh_after_commit(self) -> None:
        self._writer.is_writing = False
        try:
            self.refresh()
        except Exception:  # the write is committed: it must not look failed because reading it back did
            logger.exception("Could not reload the snapshot of %s after a commit.", self.channel)
            _recover_later(self)

    def _has_uncommitted_writes(self) -> bool:
        """Whether this thread writes in an open transaction: it alone may see its rows, and they are not kept."""
        if not getattr(self._writer, "is_writing", False):
            return False
        if connection.in_atomic_block:
            return True
        self._writer.is_writing = False  # the transaction was rolled back
        return False


def forget_snapshots() -> None:
    """Drop all values, for tests that replace the database's content."""
    for snapshot in list(_snapshots):
        snapshot.forget()


def known_snapshots() -> list[Snapshot[Any]]:
    return list(_snapshots)


def process_token() -> str:
    """Payload of this process' own notifications, which its listener skips."""
    return f"{os.getpid()}-{_TOKEN}"


def _recover_later(snapshot: Snapshot[T]) -> None:
    """Without a listener nobody reloads a stale value: drop it, so that the next reader does."""
    from inference.snapshot_listener import is_listening

    if not is_listening():
        snapshot.forget()


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_off_loop(call: Callable[[], T]) -> T:
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(_with_own_connection, call).result()


def _with_own_connection(call: Callable[[], T]) -> T:
    """Run in a pool thread and leave no database connection behind."""
    close_old_connections()
    try:
        return call()
    finally:
        connection.close()
