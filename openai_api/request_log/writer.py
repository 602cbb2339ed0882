"""The log's thread: queues entries without blocking requests, and writes them in batches.

While Postgres is down, entries stay in the bounded queue and are retried. Entries that do not fit are counted and
reported. Requests in progress when the process is killed are in its journal (journal.py); the next process writes their
rows.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from django.conf import settings
from django.db import InterfaceError, OperationalError

from core.runtime import Service, runtime
from openai_api.request_log.entry import LogEntry
from openai_api.request_log.journal import Journal, dead_journals
from openai_api.request_log.refusals import Refusals

logger = logging.getLogger(__name__)

MAX_ENTRIES = 10_000
MAX_CHARACTERS = 64 * 1024 * 1024  # bytes of texts in the queue; beyond it entries lose their texts
BATCH = 200
GATHER_S = 0.05  # how long a batch waits for more entries
RETRY_S = 1.0  # pause while the database is down


class Store(Protocol):
    """Destination of entries: :class:`openai_api.request_log.store.LogStore`, or a test's."""

    def insert(self, entries: Sequence[LogEntry]) -> None: ...

    def missing(self, entries: Sequence[LogEntry]) -> Sequence[LogEntry]: ...

    def mark_keys_used(self, entries: Sequence[LogEntry]) -> None: ...

    def refresh_connection(self) -> None: ...

    def close(self) -> None: ...


class LogWriter:
    def __init__(
        self,
        store: Store,
        *,
        max_entries: int = MAX_ENTRIES,
        max_characters: int = MAX_CHARACTERS,
        retry_s: float = RETRY_S,
        refusals: Refusals | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._store = store
        self._refusals = refusals or Refusals()
        self._queue: queue.Queue[LogEntry] = queue.Queue(max_entries)
        self._max_characters = max_characters
        self._retry_s = retry_s
        self._journal = journal
        self._lock = threading.Lock()
        self._characters = 0
        self._dropped = 0
        self._stop = threading.Event()
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Entries lost since the start."""
        return self._dropped

    @property
    def waiting(self) -> int:
        """Entries not yet written."""
        return self._queue.unfinished_tasks

    def accept(self, entry: LogEntry) -> None:
        """Register ``entry`` as in progress: it will get a row, whatever happens to the process."""
        if self._journal is not None:
            self._journal.note(entry)

    def write(self, entry: LogEntry) -> None:
        """Queue ``entry``, or count it as one of too many refusals. Never waits for Postgres, never raises."""
        if self._refusals.keeps(entry):
            self._put(entry)
        elif self._journal is not None:
            self._journal.settle([entry])  # counted in a row of several refusals

    def _put(self, entry: LogEntry) -> None:
        if self._journal is not None and entry.journal_number:
            self._journal.note(entry)  # how it ended
        with self._lock:
            if self._characters + entry.num_characters > self._max_characters:
                entry.drop_texts()
            self._characters += entry.num_characters
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._forget_size(entry)
            self._drop("the queue is full", entry)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all queued entries are written or lost; False on a timeout."""
        self._put_refusals(all_of_them=True)
        deadline = time.monotonic() + timeout_s
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks:
                if not self._queue.all_tasks_done.wait(max(0.0, deadline - time.monotonic())):
                    return False
        return True

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write what is queued, for at most ``timeout_s``, and end the thread."""
        self._put_refusals(all_of_them=True)
        self._deadline = time.monotonic() + timeout_s
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s + self._retry_s)
        if self.waiting:
            logger.error("The request log writer stopped with %d entries unwritten.", self.waiting)

    def _run(self) -> None:
        if self._journal is not None:
            self._recover(self._journal.folder)
        while not (self._stop.is_set() and self._queue.empty()):
            self._put_refusals()
            batch = self._take_batch()
            if batch:
                self._write_until_done(batch)
            if time.monotonic() > self._deadline:
                break
        if self._journal is not None:
            self._journal.close()
        self._store.close()

    def _put_refusals(self, *, all_of_them: bool = False) -> None:
        for entry in self._refusals.due(all_of_them=all_of_them):
            self._put(entry)

    def _recover(self, folder: Path) -> None:
        """Write the rows of killed processes from their journals."""
        for dead in dead_journals(folder):
            while not (self._stop.is_set() or self._try_recovery(dead.entries)):
                self._stop.wait(self._retry_s)
            if all(entry.is_written for entry in dead.entries):
                dead.forget()
            else:
                dead.leave()

    def _try_recovery(self, entries: Sequence[LogEntry]) -> bool:
        """Return whether the entries were handled; False when the database is down."""
        try:
            self._store.refresh_connection()
            for start in range(0, len(entries), BATCH):
                batch = entries[start : start + BATCH]
                missing = self._store.missing(batch)
                known = {id(entry) for entry in missing}
                self._insert(list(missing))
                for entry in batch:
                    entry.is_written = entry.is_written or id(entry) not in known
        except (OperationalError, InterfaceError) as error:
            logger.warning("The request log is waiting for the database: %s", error)
            return False
        except Exception:  # the thread must survive any error of a row or the database
            logger.exception("The request log could not write the entries of a killed process.")
        return True

    def _take_batch(self) -> list[LogEntry]:
        """Return queued entries, after a short wait for the first."""
        batch: list[LogEntry] = []
        try:
            batch.append(self._queue.get(timeout=GATHER_S))
            while len(batch) < BATCH:
                batch.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        for entry in batch:
            self._forget_size(entry)
        return batch

    def _write_until_done(self, batch: list[LogEntry]) -> None:
        while not self._try(batch):
            if time.monotonic() > self._deadline:
                return  # stays counted as waiting, which stop() reports
            time.sleep(self._retry_s)
        if self._journal is not None:
            self._journal.settle(entry for entry in batch if entry.is_written)
        for _ in batch:
            self._queue.task_done()

    def _try(self, batch: list[LogEntry]) -> bool:
        """Return whether the batch was handled; False when the database is down."""
        try:
            self._store.refresh_connection()
            self._insert(batch)
            self._store.mark_keys_used(batch)
        except (OperationalError, InterfaceError) as error:
            logger.warning("The request log is waiting for the database: %s", error)
            return False
        except Exception:  # the thread must survive any error of a row or the database
            logger.exception("The request log could not write a batch of %d entries.", len(batch))
        return True

    def _insert(self, batch: list[LogEntry]) -> None:
        """Insert all entries at once; if one is refused, insert them one by one."""
        try:
            self._store.insert(batch)
            _mark_written(batch)
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:  # noqa: BLE001 - any refusal isolates the entry that caused it
            logger.warning("The request log writes a batch of %d entries one by one: %s", len(batch), error)
            for entry in batch:
                self._insert_alone(entry)

    def _insert_alone(self, entry: LogEntry) -> None:
        """Insert the entry; if refused, without its texts, address and key (which may
        have been deleted); else drop it.
        """
        cause: object = ""
        for attempt in (entry, None):
            if attempt is None:
                entry.drop_texts()
                entry.api_key_id = entry.client_address = None
            try:
                self._store.insert([entry])
                _mark_written([entry])
            except (OperationalError, InterfaceError):
                raise
            except Exception as error:  # noqa: BLE001 - the other entries must not suffer
                cause = error
            else:
                return
        self._drop(cause, entry)

    def _forget_size(self, entry: LogEntry) -> None:
        with self._lock:
            self._characters -= entry.num_characters

    def _drop(self, cause: object, entry: LogEntry) -> None:
        with self._lock:
            self._dropped += 1
        logger.error("The request log lost entry %s (%d so far): %s", entry.id, self._dropped, cause)


def _mark_written(entries: Sequence[LogEntry]) -> None:
    for entry in entries:
        entry.is_written = True


class EntrySink(Protocol):
    """The part of the log writer that requests use."""

    def accept(self, entry: LogEntry) -> None: ...

    def write(self, entry: LogEntry) -> None: ...


@dataclass(frozen=True, slots=True)
class LogBacklog:
    """Entries not yet written, and entries lost since the start."""

    waiting: int = 0
    dropped: int = 0

    def __add__(self, other: LogBacklog) -> LogBacklog:
        return LogBacklog(self.waiting + other.waiting, self.dropped + other.dropped)


def _start_writer() -> EntrySink:
    from openai_api.request_log.store import LogStore

    writer = LogWriter(LogStore(), journal=Journal(settings.MILLM_HOME / "journal"))
    writer.start()
    return writer


LOG_WRITER = Service(_start_writer)


def get_log_writer() -> EntrySink:
    """Return this process's log writer, started on first use."""
    return runtime.get(LOG_WRITER)


BACKLOG_OF_ALL: Service[Callable[[], LogBacklog]] = Service(lambda: own_backlog)  # installed with web workers


def log_backlog() -> LogBacklog:
    """Return the backlog of the server: of all its processes that serve requests."""
    return runtime.get(BACKLOG_OF_ALL)()


def own_backlog() -> LogBacklog:
    """Return the backlog of this process's log writer; empty when nothing has been logged yet."""
    writer = runtime.find(LOG_WRITER)
    return LogBacklog(writer.waiting, writer.dropped) if isinstance(writer, LogWriter) else LogBacklog()


def stop(timeout_s: float = 5.0) -> None:
    """Write what is queued and end the thread; a later entry starts a new one."""
    writer = runtime.remove(LOG_WRITER)
    if isinstance(writer, LogWriter):
        writer.stop(timeout_s)
