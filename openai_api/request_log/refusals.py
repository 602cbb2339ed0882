"""Log requests without a valid key: the first of each address as rows, the rest as counts.

Otherwise a client without a key could fill the log's table as fast as the network carries requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from core.ids import new_id
from openai_api.http.attempts import Attempts
from openai_api.http.client_address import client_network
from openai_api.request_log.entry import LogEntry

WINDOW_S = 60.0
ROWS_PER_ADDRESS = 10  # rows per window; further refusals are counted
ROWS_OF_ALL = 300  # for all addresses together
MAX_KINDS = 1_000  # counted separately; beyond it without the address
REFUSALS = "refusals"  # parameter of the row that holds the count
NOWHERE = "/v1/*"  # endpoint of unknown URLs
Kind = tuple[str, str, int, str]  # network, endpoint, status, error code


@dataclass(slots=True)
class _Count:
    """A number of equal refusals; ``entry`` is the first one, the template of the row."""

    entry: LogEntry
    count: int = 1


def is_refusal(entry: LogEntry) -> bool:
    """Return whether the request had no valid key (401) or an unknown URL. Keys have limits of their own."""
    is_nowhere = entry.status in {404, 405} and entry.endpoint == NOWHERE
    return entry.api_key_id is None and (entry.status == 401 or is_nowhere)


class Refusals:
    """Counts refusals. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_address = Attempts(ROWS_PER_ADDRESS, WINDOW_S, clock=clock)
        self._of_all = Attempts(ROWS_OF_ALL, WINDOW_S, clock=clock)
        self._counts: dict[Kind, _Count] = {}
        self._due_at = 0.0

    def keeps(self, entry: LogEntry) -> bool:
        """Return whether ``entry`` gets a row of its own; if not, it is counted in a row of :meth:`due`."""
        if not is_refusal(entry):
            return True
        network = client_network(entry.client_address)
        if not self._by_address.take(network) and not self._of_all.take(""):
            return True
        self._count(entry, network)
        return False

    def due(self, *, all_of_them: bool = False) -> list[LogEntry]:
        """Return entries for counted refusals whose window has ended, or for all at once."""
        if not self._counts:
            return []
        with self._lock:
            if not all_of_them and self._clock() < self._due_at:
                return []
            counts, self._counts = self._counts, {}
        return [_summary(count, kind[0]) for kind, count in counts.items()]

    def _count(self, entry: LogEntry, network: str) -> None:
        with self._lock:
            if not self._counts:
                self._due_at = self._clock() + WINDOW_S
            kind = (network, entry.endpoint, entry.status, entry.error_code)
            if kind not in self._counts and len(self._counts) >= MAX_KINDS:
                kind = ("", entry.endpoint, entry.status, entry.error_code)
            known = self._counts.get(kind)
            if known is None:
                self._counts[kind] = _Count(_pattern(entry, has_address=bool(kind[0])))
            else:
                known.count += 1


def _pattern(entry: LogEntry, *, has_address: bool) -> LogEntry:
    """Return the entry without details of one request."""
    return LogEntry(
        id=new_id("req_"),
        created_at=entry.created_at,
        endpoint=entry.endpoint,
        client_address=entry.client_address if has_address else None,
        status=entry.status,
        error_code=entry.error_code,
    )


def _summary(count: _Count, network: str) -> LogEntry:
    first: datetime = count.entry.created_at
    source = f"from {network}" if network else "from many addresses"
    message = f"{count.count} more such requests {source} within {WINDOW_S:.0f} s from {first:%H:%M:%S} UTC."
    return replace(count.entry, error_message=message, parameters={REFUSALS: count.count})
