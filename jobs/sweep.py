"""What is done again and again beside the runs: jobs of dead processes run again, old ones are forgotten."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models.functions import Now

from jobs.deliveries import deliver, deliver_forgotten
from jobs.models import Job, JobLine
from jobs.periodic import enqueue_due

MAX_CRASHES = 3


def recover_stalled(stall_s: float) -> None:
    """Jobs whose process has given no sign of life for ``stall_s`` seconds are queued again, by one process."""
    old = Job.objects.filter(state=Job.State.RUNNING, heartbeat_at__lt=Now() - timedelta(seconds=stall_s))
    with transaction.atomic():
        for row in old.select_for_update(skip_locked=True):
            _recover(row)


def forget_ended(retention_days: int) -> int:
    """Delete jobs that ended longer ago than that; the number of them."""
    rows = Job.objects.ended().filter(finished_at__lt=Now() - timedelta(days=retention_days))
    return rows.delete()[1].get("jobs.Job", 0)


def sweep(*, stall_s: float, retention_days: int) -> None:
    recover_stalled(stall_s)
    deliver_forgotten()
    forget_ended(retention_days)
    enqueue_due()


def _recover(row: Job) -> None:
    """Once per crash; a job that takes its process along every time is stopped, not tried for ever."""
    row.claim = None
    row.crashes += 1
    if row.cancel_requested:
        _end(row, Job.State.CANCELLED)
    elif row.crashes >= MAX_CRASHES:
        _end(row, Job.State.FAILED, f"The process that ran it ended in the middle of it {row.crashes} times.")
    else:
        row.state = Job.State.QUEUED
        row.save()
        text = f"Its process ({row.worker}) ended or hung in the middle of it. It runs again from its checkpoint."
        JobLine.objects.create(job=row, text=text)
        deliver(row)


def _end(row: Job, state: Job.State, error: str = "") -> None:
    row.state = state
    row.error = error
    row.finished_at = Now()
    row.save()
