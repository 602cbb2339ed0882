"""A journal on disk of accepted requests that have no log row yet, so that a kill loses no row.

Each process appends to a file of its own under MILLM_HOME/journal and holds a lock on it. A file without a lock is from
a dead process: the next process writes the missing rows and removes it. Texts are not in it. It is not synced, so it
survives the end of the process, not the loss of power.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from openai_api.request_log.entry import LogEntry

logger = logging.getLogger(__name__)

MAX_BYTES = 8 * 2**20  # beyond it the file is rewritten without settled entries
KILLED = "server_killed"
KILLED_STATUS = 500
FIELDS = (  # fields of a log entry: numbers and names, no text of clients
    *("id", "endpoint", "client_address", "api_key_id", "key_prefix", "model", "profile", "fingerprint", "policies"),
    *("steering_expected", "steering_applied", "stream", "status", "error_code", "finish_reason", "prompt_tokens"),
    *(
        "cached_tokens",
        "completion_tokens",
        "media",
        "queue_ms",
        "ttft_ms",
        "total_ms",
        "user",
        "log_content",
        "is_metered",
    ),
    "is_counted",
)


class Journal:
    """The file of this process. Thread-safe. A failing disk disables the journal, is logged once, and never fails a
    request.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.path = folder / f"{uuid.uuid4().hex}.jsonl"
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._size = 0
        self._last = 0
        self._open: dict[int, bytes] = {}
        self._has_failed = False

    def note(self, entry: LogEntry) -> None:
        """Store ``entry`` in its current state, replacing its earlier state."""
        with self._lock, self._reporting():
            if not entry.journal_number:
                self._last += 1
                entry.journal_number = self._last
            record = {"n": entry.journal_number, "at": entry.created_at.isoformat()}
            record |= {name: value for name in FIELDS if (value := getattr(entry, name))}
            line = json.dumps(record, ensure_ascii=True).encode() + b"\n"
            self._open[entry.journal_number] = line
            self._append(line)

    def settle(self, entries: Iterable[LogEntry]) -> None:
        """Mark entries that have rows."""
        numbers = [entry.journal_number for entry in entries if entry.journal_number]
        if not numbers:
            return
        with self._lock, self._reporting():
            for number in numbers:
                self._open.pop(number, None)
            if self._size > self.max_bytes:
                self._write_anew()
            else:
                self._append(json.dumps({"settled": numbers}).encode() + b"\n")

    def close(self) -> None:
        """Remove the file, unless something in it is not settled: the next process writes that."""
        with self._lock:
            if self._descriptor is not None:
                if not self._open:
                    self.path.unlink(missing_ok=True)
                os.close(self._descriptor)
            self._descriptor = None

    def _append(self, line: bytes) -> None:
        if self._descriptor is None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = _open_locked(self.path)
        self._size += os.write(self._descriptor, line)

    def _write_anew(self) -> None:
        draft = self.path.with_suffix(".new")
        descriptor = _open_locked(draft)
        try:
            self._size = os.write(descriptor, b"".join(self._open.values()))
            draft.rename(self.path)
        except OSError:
            os.close(descriptor)
            raise
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = descriptor

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._has_failed:
                logger.error("Requests that are running if this process is killed will not be logged: %s", error)
            self._has_failed = True


@dataclass(frozen=True, slots=True)
class DeadJournal:
    """The file of a process that has ended, locked by this one."""

    path: Path
    descriptor: int
    entries: tuple[LogEntry, ...]

    def forget(self) -> None:
        """Delete the file: its entries have rows."""
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)

    def leave(self) -> None:
        """Leave the file to the next process."""
        os.close(self.descriptor)


def dead_journals(folder: Path) -> Iterator[DeadJournal]:
    """Return the journals of ended processes. Call ``forget`` or ``leave`` on each."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # deleted, or another user's
            continue
        if _is_dead(path, descriptor):
            yield DeadJournal(path, descriptor, tuple(_entries_of(path)))
        else:
            os.close(descriptor)
    for draft in folder.glob("*.new"):  # its process died before renaming it
        with suppress(OSError):
            descriptor = os.open(draft, os.O_RDWR | os.O_CLOEXEC)
            if _is_dead(draft, descriptor):
                draft.unlink(missing_ok=True)
            os.close(descriptor)


def _is_dead(path: Path, descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(descriptor).st_ino == path.stat().st_ino  # otherwise another file has replaced it
    except OSError:
        return False


def _entries_of(path: Path) -> Iterator[LogEntry]:
    """Return the entries that are not settled, in their latest state. Only the last line can be truncated."""
    found: dict[int, dict[str, Any]] = {}
    for line in path.read_bytes().splitlines():
        with suppress(ValueError):
            record = json.loads(line)
            for number in record.get("settled", ()):
                found.pop(number, None)
            if "n" in record:
                found[record["n"]] = record
    for record in found.values():
        entry = LogEntry(record["id"], datetime.fromisoformat(record["at"]), record["endpoint"], None)
        for name in FIELDS:
            setattr(entry, name, record.get(name, getattr(entry, name)))
        if entry.total_ms is None:  # it was in progress
            entry.status, entry.error_code = KILLED_STATUS, KILLED
            entry.error_message = "The server process was killed before the request ended."
        yield entry


def _open_locked(path: Path) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor
