"""The jobs app, and the worker of this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.conf import settings

if TYPE_CHECKING:
    from jobs.worker import JobWorker


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = "Jobs"


_worker: JobWorker | None = None
_lock = threading.Lock()


def start_job_worker() -> None:
    """Start the worker of this process. Idempotent. Called by serving processes only."""
    global _worker
    with _lock:
        if _worker is None and settings.MILLM_JOB_WORKERS:
            from jobs.worker import JobWorker, Slots

            _worker = JobWorker(
                slots=Slots(
                    threads=settings.MILLM_JOB_WORKERS,
                    coroutines=settings.MILLM_BACKGROUND_RESPONSES,
                    max_share=settings.MILLM_JOB_MAX_SHARE,
                ),
                stall_s=settings.MILLM_JOB_STALL_SECONDS,
                retention_days=settings.MILLM_JOB_RETENTION_DAYS,
            )
            _worker.start()


def interrupt_jobs() -> None:
    """Stop accepting jobs. Running ones return to the queue when they next report progress."""
    worker = _worker
    if worker is not None:
        worker.interrupt()


def stop_job_worker(timeout_s: float = 5.0) -> None:
    """Wait until running jobs are back in the queue, and end the threads. Idempotent."""
    global _worker
    with _lock:
        worker, _worker = _worker, None
    if worker is not None:
        worker.stop(timeout_s)
