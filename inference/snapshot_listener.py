"""The thread that hears PostgreSQL's notifications and reloads snapshots. Runs in serving processes only."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError, close_old_connections, connections
from psycopg import sql

from inference.snapshots import EVERYTHING, Snapshot, announced_ids, known_snapshots, process_token

logger = logging.getLogger(__name__)
POLL_S = 0.5
HEARTBEAT_S = 5.0
MAX_BACKOFF_S = 5.0


class SnapshotListener:
    """Reloads every snapshot whose channel is notified, and all of them after a (re)connection.

    While the database is away the snapshots keep their last values and the thread tries to reconnect, first after
    0.25 s, then at doubling intervals up to 5 s.
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
            except Exception as error:  # noqa: BLE001 - the thread outlives every fault of the database
                logger.warning("Snapshot listener lost the database (%s); next try in %.2f s.", error, backoff_s)
                self._stop.wait(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
        connections[self._database].close()

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection of its own, outside Django's pool, because it waits in it."""
        params = connections[self._database].get_connection_params()
        # A peer that is gone without a word is noticed by the heartbeat, within the time that TCP is given here.
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
    """Reload what changed; a database error leaves the rest stale and makes the listener connect again."""
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
    except Exception:  # one bad row must not keep the other snapshots from being reloaded
        logger.exception("Could not reload the snapshot of %s; it keeps its last value.", snapshot.channel)
        snapshot.give_up()


_listener: SnapshotListener | None = None
_lock = threading.Lock()


def start_listening() -> None:
    """Start this process' listener; does nothing when it runs."""
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
