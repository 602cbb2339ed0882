"""Periodic jobs: queued by the sweep when their interval has passed and there is something to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django.db import connection, transaction
from django.db.models.functions import Now

from jobs.kinds import load_function
from jobs.models import Job
from jobs.services import enqueue_job

logger = logging.getLogger(__name__)
_LOCK = 0x6D694C4C4D70  # "miLLMp": only one process at a time checks which jobs are due


@dataclass(frozen=True, slots=True)
class Periodic:
    """A kind of job that runs periodically.

    ``is_due`` (a function or its name, "dotted.module:function") returns whether there is anything to do. It is called
    on each sweep, but not within ``every`` after it has returned True.
    """

    kind: str
    every: timedelta
    is_due: Callable[[], bool] | str


_periodic: dict[str, Periodic] = {}


def register_periodic(periodic: Periodic) -> None:
    """Register a periodic job. Call it in ``AppConfig.ready()``, after registering its kind."""
    _periodic[periodic.kind] = periodic


def unregister_periodic(kind: str) -> None:
    """Remove a periodic job. For tests."""
    _periodic.pop(kind, None)


def enqueue_due() -> list[Job]:
    """Enqueue the jobs that are due and return them. A failing check does not affect the others."""
    return [job for periodic in list(_periodic.values()) if (job := _enqueue(periodic)) is not None]


def _enqueue(periodic: Periodic) -> Job | None:
    try:
        with transaction.atomic():
            if not _try_lock() or _is_recent(periodic) or not load_function(periodic.is_due)():
                return None
            return enqueue_job(kind=periodic.kind, params={})
    except Exception:
        logger.exception("Could not check whether a job of the kind %s is due.", periodic.kind)
        return None


def _try_lock() -> bool:
    """Take a lock until the transaction ends, and return whether it was free."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        return bool(cursor.fetchone()[0])


def _is_recent(periodic: Periodic) -> bool:
    """Return whether a job was enqueued within the interval or has not ended."""
    own = Job.objects.filter(kind=periodic.kind)
    return own.filter(created_at__gt=Now() - periodic.every).exists() or own.exclude(state__in=Job.ENDED).exists()
