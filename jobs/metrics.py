"""Prometheus metrics of jobs, by lane. `/metrics` registers them: the process's registry is in a layer above."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge, Histogram

from jobs.lanes import Lane
from jobs.models import Job

_WAIT_BUCKETS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0)

QUEUED = Gauge("millm_jobs_queued", "Jobs that could start, of all processes.", ("lane",), registry=None)
RUNNING = Gauge("millm_jobs_running", "Jobs that this process runs.", ("lane",), registry=None)
ENDED = Counter("millm_jobs", "Jobs that ended in this process, by state.", ("lane", "state"), registry=None)
WAITS = Histogram(
    "millm_job_wait_seconds",
    "Time from a job's creation to its first start.",
    ("lane",),
    buckets=_WAIT_BUCKETS,
    registry=None,
)
METRICS = (QUEUED, RUNNING, ENDED, WAITS)


def note_queued(counts: Mapping[str, int]) -> None:
    """Set the number of queued jobs of each lane."""
    for lane in Lane:
        QUEUED.labels(lane.value).set(counts.get(lane.value, 0))


def note_start(row: Job) -> None:
    RUNNING.labels(row.lane).inc()
    if row.attempts == 1 and row.claimed_at is not None:
        WAITS.labels(row.lane).observe(max(0.0, (row.claimed_at - row.created_at).total_seconds()))


def note_stop(row: Job) -> None:
    RUNNING.labels(row.lane).dec()


def note_end(lane: str, state: str) -> None:
    ENDED.labels(lane, state).inc()
