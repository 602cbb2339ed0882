"""Values read from the database, cached in this process and reloaded when any process changes them.

A writer calls :meth:`Snapshot.invalidate` inside its transaction: at commit this process reloads the value before
``on_commit`` returns, and PostgreSQL notifies the other processes, whose listener thread reloads theirs. Reading a
warm snapshot does not use the database, so requests can be handled while PostgreSQL is down.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import psycopg
from django.db import (
    DEFAULT_DB_ALIAS,
    DatabaseError,
    InterfaceError,
    close_old_connections,
    connection,
    connections,
    transaction,
)
from psycopg import sql

from core.database import own_connection

logger = logging.getLogger(__name__)
T = TypeVar("T")
MAX_CHANGED = 500  # rows that are reloaded one by one after a change, and whose ids fit into a notification
EVERYTHING = None  # instead of the ids of changed rows: all may have changed
_TOKEN = uuid.uuid4().hex
Tell = Callable[[str, "Collection[int] | None"], None]  # gets a channel and the ids of the changed rows
_snapshots: weakref.WeakSet[Snapshot[Any]] = weakref.WeakSet()


class Snapshot(Generic[T]):
    """One value, loaded by ``load`` (synchronous ORM code) and invalidated on the PostgreSQL channel ``channel``.

    ``load_changed`` builds a new value from the old one and the rows of the given ids; without it, everything is
    reloaded after each change. Without a running listener (in commands), only writes of this process refresh the value.
    """

    def __init__(
        self,
        channel: str,
        load: Callable[[], T],
        load_changed: Callable[[T, frozenset[int]], T] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.channel = channel
        self._load = load
        self._load_changed = load_changed
        self._clock = clock
        self._value: tuple[T] | None = None  # boxed, so that None can be a value
        self._loading = threading.Lock()
        self._counting = threading.Lock()
        self._requested = 0  # the newest ticket of a requested refresh
        self._done = 0  # the newest ticket that the value reflects
        self._changed: set[int] | None = set()  # ids of the rows announced by the tickets in between
        self._current_at = clock()  # when the value was last known to match the database
        self._is_broken = False  # loading failed in a way that a retry would not fix
        self._writer = threading.local()
        _snapshots.add(self)

    def get(self) -> T:
        """Return the value, and load it on first use. Safe in async code: a cold value is loaded in another thread."""
        if self._has_uncommitted_writes():
            return self._load()
        box = self._value
        if box is not None:
            return box[0]
        return _run_off_loop(self.refresh) if _in_event_loop() else self.refresh()

    async def aget(self) -> T:
        """Like :meth:`get`, but wait for a cold value without blocking the event loop."""
        box = self._value
        return box[0] if box is not None else await asyncio.to_thread(_with_own_connection, self.refresh)

    def refresh(self, ids: Collection[int] | None = EVERYTHING) -> T:
        """Reload the value, or the rows of these ids. Concurrent callers share a load that starts after both called."""
        return self._loaded(self.mark_stale(ids))

    def catch_up(self) -> None:
        """Load all announced changes that are not in the value yet."""
        self._loaded(self._requested)

    def _loaded(self, ticket: int) -> T:
        with self._loading:
            if self._done < ticket or self._value is None:
                self._value = (self._reload(),)
            return self._value[0]

    def _reload(self) -> T:
        at = self._clock()
        with self._counting:
            started, changed, self._changed = self._requested, self._changed, set()
        box = self._value
        try:
            if box is None or changed is EVERYTHING or self._load_changed is None:
                value = self._load()
            else:
                value = self._load_changed(box[0], frozenset(changed))
        except BaseException:
            with self._counting:
                self._changed = _both(self._changed, changed)
            raise
        self._done, self._current_at, self._is_broken = started, at, False
        return value

    def invalidate(self, ids: Collection[int] | None = EVERYTHING) -> None:
        """Notify every process at commit (immediately outside a transaction) that the value, or rows of it, changed."""
        ids = self._few(ids)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [self.channel, announcement(ids)])
        self._writer.is_writing = True
        self._writer.changed = _both(getattr(self._writer, "changed", set()), ids)
        transaction.on_commit(self._refresh_after_commit)

    def take_change(self, ids: Collection[int] | None) -> None:
        """Reload after a change by another process. A value that was never loaded stays so."""
        ticket = self.mark_stale(ids)
        if self._value is not None:
            self._loaded(ticket)

    def forget(self) -> None:
        """Drop the value; the next reader loads it."""
        self._value = None
        self._writer = threading.local()

    @property
    def is_stale(self) -> bool:
        """Whether an announced change is not in the value yet. Until then, readers get the old value."""
        return self._done < self._requested

    def mark_stale(self, ids: Collection[int] | None = EVERYTHING) -> int:
        """Announce a change, so that the listener reloads. Return the ticket of the announcement."""
        with self._counting:
            self._requested += 1
            self._changed = _both(self._changed, self._few(ids))
            return self._requested

    def abandon_reload(self) -> None:
        """Keep the old value until the next change, because loading failed in a way that a retry would not fix."""
        self._done, self._is_broken = self._requested, True

    def confirm(self, at: float) -> None:
        """Record that all changes up to ``at`` were received: a value that reflects them all was current then."""
        if not self.is_stale and not self._is_broken:
            self._current_at = max(self._current_at, at)

    @property
    def age_s(self) -> float:
        """Seconds since the value was last known to be current; grows while the database is unreachable."""
        return self._clock() - self._current_at

    def _few(self, ids: Collection[int] | None) -> Collection[int] | None:
        return EVERYTHING if ids is EVERYTHING or self._load_changed is None or len(ids) > MAX_CHANGED else ids

    def _refresh_after_commit(self) -> None:
        """Reload after a commit. Runs once per announcement; the first call loads the changes of all of them."""
        self._writer.is_writing = False
        changed, self._writer.changed = getattr(self._writer, "changed", EVERYTHING), set()
        if changed is not EVERYTHING and not changed:
            return
        try:
            self.refresh(changed)
        except Exception:  # the write is committed; a failed reload must not make it look failed
            logger.exception("The snapshot of %s could not be reloaded after a commit.", self.channel)
            _recover_later(self)
        _tell_others(self.channel, changed)

    def _has_uncommitted_writes(self) -> bool:
        """Return whether this thread has uncommitted writes. No other thread sees them, so they must not be cached."""
        if not getattr(self._writer, "is_writing", False):
            return False
        if connection.in_atomic_block:
            return True
        self._writer.is_writing = False  # the transaction was rolled back
        return False


def _tell_nobody(channel: str, ids: Collection[int] | None) -> None:
    """Do nothing: the notification reaches the other processes."""


_tell_others: Tell = _tell_nobody


def tell_changes(tell: Tell) -> None:
    """Call ``tell`` after each commit of this process that changes a snapshot, before its request is answered.

    The web workers of a server use it, so that the next request to another one sees the change.
    """
    global _tell_others
    _tell_others = tell


def take_change(channel: str, ids: Collection[int] | None) -> None:
    """Reload the snapshots of a channel, whose rows another process has changed. Uses a connection of its own."""
    with own_connection():
        for snapshot in known_snapshots():
            if snapshot.channel == channel:
                snapshot.take_change(ids)


def forget_snapshots() -> None:
    """Drop all values. For tests that replace the content of the database."""
    for snapshot in list(_snapshots):
        snapshot.forget()


def known_snapshots() -> list[Snapshot[Any]]:
    return list(_snapshots)


def process_token() -> str:
    """Return the prefix of this process's notifications, which its own listener skips."""
    return f"{os.getpid()}-{_TOKEN}"


def announcement(ids: Collection[int] | None) -> str:
    """Return the payload of a notification: the process, and the ids of the changed rows if there are few."""
    return process_token() if ids is EVERYTHING else f"{process_token()} {','.join(map(str, ids))}"


def announced_ids(payload: str) -> frozenset[int] | None:
    """Return the ids in a notification, or EVERYTHING if the payload is not in our format."""
    numbers = payload.partition(" ")[2].split(",")
    is_ours = all(number.isascii() and number.isdecimal() for number in numbers)
    return frozenset(map(int, numbers)) if is_ours else EVERYTHING


def _both(one: Collection[int] | None, other: Collection[int] | None) -> set[int] | None:
    return EVERYTHING if one is EVERYTHING or other is EVERYTHING else {*one, *other}


def _recover_later(snapshot: Snapshot[T]) -> None:
    """Drop a stale value if no listener is running to reload it, so that the next reader reloads it."""
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
    with own_connection():
        return call()


POLL_S = 0.5
HEARTBEAT_S = 5.0
MAX_BACKOFF_S = 5.0


class SnapshotListener:
    """A thread that reloads every snapshot whose channel is notified, and all of them after a (re)connection.

    Runs in serving processes only.

    While the database is down, the snapshots keep their last values and the thread tries to reconnect, first after
    0.25 s, then at doubling intervals of up to 5 s.
    """

    def __init__(self, database: str = DEFAULT_DB_ALIAS) -> None:
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshot-listener", daemon=True)
        self.connected = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        backoff_s = POLL_S / 2
        while not self._stop.is_set():
            try:
                with self._connection() as connection:
                    backoff_s = POLL_S / 2
                    self._listen(connection)
            except Exception as error:  # noqa: BLE001 - the thread survives all database failures
                logger.warning(
                    "The snapshot listener lost its database connection (%s). Retrying in %.2f s.", error, backoff_s
                )
                self._stop.wait(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
        connections[self._database].close()

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Open a connection outside Django's pool, because it is held while the thread waits."""
        params = connections[self._database].get_connection_params()
        # The heartbeat detects a server that vanished without closing the connection, within this TCP timeout.
        with psycopg.connect(**{**params, "autocommit": True, "tcp_user_timeout": 15_000}) as connection:
            try:
                yield connection
            finally:
                self.connected.clear()

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        channels: set[str] = set()
        next_beat = 0.0
        while not self._stop.is_set():
            self._subscribe(connection, channels)
            self.connected.set()
            for notification in connection.notifies(timeout=POLL_S, stop_after=1):
                if notification.payload.partition(" ")[0] != process_token():
                    _mark_stale(notification.channel, announced_ids(notification.payload))
            _reload_stale()
            if (at := time.monotonic()) >= next_beat:
                connection.execute("SELECT 1")
                next_beat = at + HEARTBEAT_S
                for snapshot in known_snapshots():
                    snapshot.confirm(at)

    def _subscribe(self, connection: psycopg.Connection[Any], channels: set[str]) -> None:
        """LISTEN to new channels; their snapshots may have missed changes before."""
        for snapshot in known_snapshots():
            if snapshot.channel not in channels:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(snapshot.channel)))
                channels.add(snapshot.channel)
                _mark_stale(snapshot.channel)
        _reload_stale()


def _mark_stale(channel: str, ids: Collection[int] | None = EVERYTHING) -> None:
    for snapshot in known_snapshots():
        if snapshot.channel == channel:
            snapshot.mark_stale(ids)


def _reload_stale() -> None:
    """Reload stale snapshots. On a database error the rest stays stale and the listener reconnects."""
    stale = [snapshot for snapshot in known_snapshots() if snapshot.is_stale]
    if not stale:
        return
    close_old_connections()
    for snapshot in stale:
        _reload(snapshot)
    close_old_connections()


def _reload(snapshot: Snapshot[Any]) -> None:
    try:
        snapshot.catch_up()
    except (DatabaseError, InterfaceError):
        raise
    except Exception:  # one invalid row must not block the other snapshots
        logger.exception("The snapshot of %s could not be reloaded; using the previous one.", snapshot.channel)
        snapshot.abandon_reload()


_listener: SnapshotListener | None = None
_lock = threading.Lock()


def start_listening() -> None:
    """Start the listener of this process. Idempotent."""
    global _listener
    with _lock:
        if _listener is None:
            _listener = SnapshotListener()
            _listener.start()


def stop_listening() -> None:
    global _listener
    with _lock:
        listener, _listener = _listener, None
    if listener is not None:
        listener.stop()


def is_listening() -> bool:
    return _listener is not None
