"""Which queued job runs next: within a lane, owners with waiting jobs take turns.

The rows are the queue. A claim is one transaction that marks a row as running; rows that another process is claiming
are skipped. A notification at the commit of a queued job wakes the workers of all processes, and a worker that missed
it finds the row when it polls.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Collection
from datetime import UTC, datetime

from django.db import connection, transaction
from django.db.models import Count, F, Max, Min
from django.db.models.functions import Coalesce, Now

from jobs.kinds import async_kinds
from jobs.lanes import Lane
from jobs.models import Job, JobQuerySet

CHANNEL = "millm_jobs"
_NEVER = datetime.min.replace(tzinfo=UTC)


def wake_workers(lane: str) -> None:
    """Notify the workers of all processes, when the transaction commits, that a job of the lane may start."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, lane])


def claim_next(lane: Lane, claim: uuid.UUID, *, is_async: bool, full: Collection[str] = ()) -> Job | None:
    """Claim the lane's next job and return its row; None if no job may start.

    Next is the account with the fewest running jobs in the lane, of those the one whose last start is the longest ago,
    of new ones the one that waits the longest; of its jobs the one with the highest priority, then the oldest.
    ``full``: accounts that have enough running jobs.
    """
    with transaction.atomic():
        for account in _by_turn(lane, is_async=is_async):
            if account in full:
                continue
            waiting = _of_lane(lane, is_async=is_async).due().filter(account=account)
            row = waiting.order_by("-priority", "created_at", "pk").select_for_update(skip_locked=True).first()
            if row is not None:
                return _claim(row.pk, claim)
    return None


@transaction.atomic
def claim_job(job_id: uuid.UUID, claim: uuid.UUID) -> Job | None:
    """Claim this job and return its row; None if it is no longer queued, or not due."""
    return _claim(job_id, claim)


def must_share(lane: str, account: str) -> bool:
    """Return whether a job waits in the lane whose account has fewer running jobs there than ``account``."""
    threads = _of_lane(lane, is_async=False)
    waiting = set(threads.due().exclude(account=account).values_list("account", flat=True).distinct())
    if not waiting:
        return False
    running = _num_running(threads, {account, *waiting})
    return any(running.get(other, 0) < running.get(account, 0) for other in waiting)


def _claim(job_id: uuid.UUID, claim: uuid.UUID) -> Job | None:
    count = (
        Job.objects.due()
        .filter(pk=job_id)
        .update(
            state=Job.State.RUNNING,
            claim=claim,
            worker=f"{socket.gethostname()[:150]}, process {os.getpid()}",
            attempts=F("attempts") + 1,
            started_at=Coalesce("started_at", Now()),
            claimed_at=Now(),
            heartbeat_at=Now(),
            not_before=None,
        )
    )
    return Job.objects.claimed(claim).get() if count else None


def _by_turn(lane: str, *, is_async: bool) -> list[str]:
    """Return the accounts that have jobs to start, those first whose turn it is."""
    jobs = _of_lane(lane, is_async=is_async)
    waiting = jobs.due().order_by().values("account").annotate(since=Min("created_at")).order_by("since", "account")
    accounts = list(waiting.values_list("account", flat=True))
    if len(accounts) < 2:
        return accounts
    running = _num_running(jobs, accounts)
    starts = jobs.order_by().filter(account__in=accounts).values_list("account").annotate(Max("claimed_at"))
    last = {account: at or _NEVER for account, at in starts}
    return sorted(accounts, key=lambda account: (running.get(account, 0), last.get(account, _NEVER)))


def _num_running(jobs: JobQuerySet, accounts: Collection[str]) -> dict[str, int]:
    rows = jobs.order_by().filter(state=Job.State.RUNNING, account__in=accounts)
    return dict(rows.values_list("account").annotate(Count("pk")))


def _of_lane(lane: str, *, is_async: bool) -> JobQuerySet:
    jobs, coroutines = Job.objects.filter(lane=lane), async_kinds()
    return jobs.filter(kind__in=coroutines) if is_async else jobs.exclude(kind__in=coroutines)
