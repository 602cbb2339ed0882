"""Enqueue, cancel and retry jobs."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models.functions import Now

from audit.models import AuditEvent
from audit.record import record
from core.text import clean_text
from jobs.claims import wake_workers
from jobs.errors import JobStateError
from jobs.kinds import find_kind
from jobs.models import Job, check_storable
from jobs.webhooks.outbox import queue_job_event

MAX_TITLE = 300
MAX_PRIORITY = 1_000


def account_of(owner_id: int | None, api_key_id: int | None = None) -> str:
    """Return the account of a user, of an API key without an owner, or of requests without either."""
    if owner_id is not None:
        return f"user {owner_id}"
    return "no key" if api_key_id is None else f"key {api_key_id}"


@transaction.atomic
def enqueue_job(
    *,
    kind: str,
    params: dict[str, Any],
    owner: User | None = None,
    title: str = "",
    priority: int = 0,
    account: str | None = None,
) -> Job:
    """Queue a job. It starts when the transaction is committed and a worker is free. Raise JobError if invalid.

    ``account``: whose turn it uses (:func:`account_of`); by default the owner's, or the server's if there is none.
    """
    found = find_kind(kind)
    job = Job.objects.create(
        kind=kind,
        lane=found.lane,
        account=account if account is not None else "" if owner is None else account_of(owner.pk),
        title=clean_text(title or found.title, MAX_TITLE),
        params=check_storable(params, "parameters"),
        owner=owner,
        priority=max(-MAX_PRIORITY, min(priority, MAX_PRIORITY)),
    )
    wake_workers(job.lane)
    return job


@transaction.atomic
def cancel_job(*, job: Job) -> Job:
    """Cancel a job. A queued job ends at once, a running one when it next reports progress."""
    row = Job.objects.select_for_update().get(pk=job.pk)
    if row.has_ended:
        raise JobStateError(f'The job "{row}" has already ended ({row.state}).')
    ends_now = row.state == Job.State.QUEUED
    if ends_now:
        row.state = Job.State.CANCELLED
        row.finished_at = Now()
    row.cancel_requested = True
    row.save(update_fields=["state", "finished_at", "cancel_requested"])
    if ends_now:
        queue_job_event(row)
    record(AuditEvent.Action.CANCEL, row)
    return row


@transaction.atomic
def retry_job(*, job: Job) -> Job:
    """Queue a failed or cancelled job again. It continues from its checkpoint."""
    row = Job.objects.select_for_update().get(pk=job.pk)
    if row.state not in (Job.State.FAILED, Job.State.CANCELLED):
        raise JobStateError(f'The job "{row}" is {row.state}. Only failed and cancelled jobs can be retried.')
    row.state = Job.State.QUEUED
    row.error = row.message = ""
    row.crashes = 0
    row.cancel_requested = False
    row.finished_at = row.heartbeat_at = row.not_before = None
    row.save()
    wake_workers(row.lane)
    record(AuditEvent.Action.RETRY, row)
    return row
