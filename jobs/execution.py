"""One run of a job, from claiming its row to its end."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Coalesce, Now

from audit.origin import Origin, acting
from core.database import describe_database_error, is_database_error
from core.text import clean_text
from jobs.deliveries import deliver
from jobs.errors import JobCancelled, JobError, JobInterrupted, JobLost, JobPostponed
from jobs.kinds import find_kind
from jobs.models import Job, check_storable
from jobs.running_job import MAX_MESSAGE, RunningJob, retry_while_db_down


class RunningJobs:
    """The runs of this process, for heartbeats and for stopping them."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._changed = threading.Condition()
        self._jobs: dict[uuid.UUID, RunningJob] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @contextmanager
    def entry(self, job: RunningJob) -> Iterator[None]:
        with self._changed:
            self._jobs[job.claim] = job
        try:
            yield
        finally:
            with self._changed:
                del self._jobs[job.claim]
                self._changed.notify_all()

    def beat(self) -> None:
        """Write heartbeats, and stop runs that have lost their row."""
        with self._changed:
            jobs = list(self._jobs.values())
        if not jobs:
            return
        rows = Job.objects.filter(claim__in=[job.claim for job in jobs])
        rows.update(heartbeat_at=Now())
        held = set(rows.values_list("claim", flat=True))
        for job in jobs:
            if job.claim not in held:
                job.lost.set()  # has no effect if the run has just ended

    def wait_until_none(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs, max(0.0, deadline - time.monotonic()))


logger = logging.getLogger(__name__)
MAX_ERROR = 4_000


def run_job(job_id: uuid.UUID, running: RunningJobs | None = None) -> None:
    """Run the job in this thread if it is queued. An exception becomes the job's error."""
    running = RunningJobs() if running is None else running
    claim = uuid.uuid4()
    try:
        row = retry_while_db_down(lambda: claim_job(job_id, claim), running.stopping)
    except JobInterrupted:
        return
    if row is None:
        return
    job = RunningJob(row.id, claim, row.params, row.owner_id, row.checkpoint, row.lines.count(), running.stopping)
    with running.entry(job):
        _run(row.kind, job)


@transaction.atomic
def claim_job(job_id: uuid.UUID, claim: uuid.UUID) -> Job | None:
    """Claim the job and return its row; None if it is no longer queued, or not due."""
    taken = Job.objects.due().filter(pk=job_id)
    count = taken.update(
        state=Job.State.RUNNING,
        claim=claim,
        worker=f"{socket.gethostname()[:150]}, process {os.getpid()}",
        attempts=F("attempts") + 1,
        started_at=Coalesce("started_at", Now()),
        heartbeat_at=Now(),
        not_before=None,
    )
    return Job.objects.claimed(claim).get() if count else None


def _run(kind: str, job: RunningJob) -> None:
    try:
        with acting(job_origin(kind, job)):
            result = find_kind(kind).load_run()(job)
        _end(job, Job.State.SUCCEEDED, result=check_storable(result or {}, "result"), message="", done=F("total"))
    except JobCancelled:
        _end(job, Job.State.CANCELLED)
    except JobInterrupted:
        give_back(job)
    except JobPostponed as postponed:
        give_back(job, postponed)
    except JobLost:
        logger.warning("The job %s stopped in this process: another process runs it, or it was deleted.", job.id)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a run raises is its job's end, not its thread's
        _fail(job, error)


def job_origin(kind: str, job: RunningJob) -> Origin:
    """Attribute a run's changes to the job's owner in the audit trail."""
    return Origin(username=lambda: _owner(job), command=f"job {kind}", request_id=str(job.id))


def _owner(job: RunningJob) -> str:
    row = Job.objects.select_related("owner").filter(pk=job.id).first()
    return "" if row is None or row.owner is None else row.owner.get_username()


def _fail(job: RunningJob, error: BaseException) -> None:
    if job.stopping.is_set():  # the process is stopping, so the job is not at fault
        give_back(job)
        return
    logger.error("The job %s failed.", job.id, exc_info=error)
    _end(job, Job.State.FAILED, error=clean_text(sentence(error), MAX_ERROR))


def sentence(error: BaseException) -> str:
    """Return the message of the error, with the class name as a prefix unless it is a full sentence."""
    text = (describe_database_error(error) if is_database_error(error) else str(error)).strip()
    if isinstance(error, JobError) or (text.endswith(".") and " " in text):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _end(job: RunningJob, state: Job.State, **values: Any) -> None:
    """Write the outcome, retrying while the database is down. A run that has lost its job writes nothing."""
    values |= {"state": state, "claim": None, "finished_at": Now()}
    try:
        retry_while_db_down(lambda: Job.objects.claimed(job.claim).update(**values), job.stopping)
    except JobInterrupted:
        logger.warning("The outcome of the job %s could not be written. The job will run again.", job.id)


def give_back(job: RunningJob, postponed: JobPostponed | None = None) -> None:
    """Queue the job again. If this fails while the process is stopping, the sweep queues it."""
    try:
        retry_while_db_down(lambda: _queue_again(job.claim, postponed), job.stopping)
    except JobInterrupted:
        logger.warning("The job %s could not be queued again. It will run when its heartbeat is too old.", job.id)


@transaction.atomic
def _queue_again(claim: uuid.UUID, postponed: JobPostponed | None) -> None:
    row = Job.objects.claimed(claim).select_for_update().first()
    if row is None:
        return
    row.state = Job.State.QUEUED
    row.claim = row.heartbeat_at = None
    if postponed is None:
        row.save(update_fields=["state", "claim", "heartbeat_at"])
        deliver(row)
    else:  # the sweep will deliver the job when it is due
        row.not_before, row.message = postponed.until, clean_text(postponed.reason, MAX_MESSAGE)
        row.save(update_fields=["state", "claim", "heartbeat_at", "not_before", "message"])
