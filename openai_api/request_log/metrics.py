"""Prometheus metrics of requests to /v1 and of the log itself, and counts of recently used profiles and keys."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from inference.metrics import REGISTRY
from openai_api.http.in_flight import in_flight
from openai_api.request_log.entry import LogEntry
from openai_api.request_log.writer import log_backlog

MAX_NAMES = 200  # further names are counted together under ""


@dataclass(frozen=True, slots=True)
class Use:
    """Requests by published version, and by the key's primary key as text."""

    profiles: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, int] = field(default_factory=dict)


class RecentUse:
    """Counts of used profiles and keys; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._profiles: collections.Counter[str] = collections.Counter()
        self._keys: collections.Counter[str] = collections.Counter()

    def note(self, profile: str, api_key_id: int | None) -> None:
        with self._lock:
            if profile:
                _count(self._profiles, profile)
            if api_key_id is not None:
                _count(self._keys, str(api_key_id))

    def add(self, use: Use) -> None:
        """Add the counts of another process."""
        with self._lock:
            for counter, counts in ((self._profiles, use.profiles), (self._keys, use.keys)):
                for name, count in counts.items():
                    _count(counter, name, count)

    def take(self) -> Use:
        """Return the counts since the last call."""
        with self._lock:
            use = Use(dict(self._profiles), dict(self._keys))
            self._profiles.clear()
            self._keys.clear()
        return use


def _count(counter: collections.Counter[str], name: str, count: int = 1) -> None:
    counter[name if name in counter or len(counter) < MAX_NAMES else ""] += count


recent_use = RecentUse()


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

REQUESTS = Counter(
    "millm_requests",
    "Requests to /v1 by HTTP status. 499: the client disconnected before the response.",
    ("endpoint", "model", "status"),
    registry=REGISTRY,
)
ERRORS = Counter(
    "millm_request_errors",
    "Requests to /v1 that failed, including errors within a stream, by error code.",
    ("endpoint", "code"),
    registry=REGISTRY,
)
DURATION = Histogram(
    "millm_request_duration_seconds",
    "Duration of requests to /v1, from the request's header to the end of the response.",
    ("endpoint",),
    buckets=_SECONDS,
    registry=REGISTRY,
)

IN_PROGRESS = Gauge("millm_requests_in_progress", "Requests to /v1 in progress.", registry=REGISTRY)
IN_PROGRESS.set_function(lambda: in_flight.count)


def note_request(entry: LogEntry, model: str) -> None:
    """Count a finished request. ``model`` is the registered model, "" for none: a client's text is never a label."""
    REQUESTS.labels(entry.endpoint, model, str(entry.status)).inc()
    if entry.error_code:
        ERRORS.labels(entry.endpoint, entry.error_code).inc()
    recent_use.note(entry.profile, entry.api_key_id)
    if entry.total_ms is not None:
        DURATION.labels(entry.endpoint).observe(entry.total_ms / 1000)


class LogCollector(Collector):
    """Metrics of the log's queue."""

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        backlog = log_backlog()
        yield GaugeMetricFamily(
            "millm_request_log_waiting_entries", "Log entries waiting to be written.", value=backlog.waiting
        )
        yield CounterMetricFamily("millm_request_log_dropped_entries", "Lost log entries.", value=backlog.dropped)


REGISTRY.register(LogCollector())
