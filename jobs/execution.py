"""One run of a job, from claiming its row to its end: in a thread, or as a coroutine beside others."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from django.conf import settings
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import F
from django.db.models.functions import Now

from audit.origin import Origin, acting
from core.database import describe_database_error, is_database_error, own_connection
from core.text import clean_text
from jobs.claims import claim_job, must_share, wake_workers
from jobs.errors import JobCancelled, JobError, JobInterrupted, JobLost, JobPostponed, RunStopped
from jobs.kinds import find_kind
from jobs.metrics import note_end
from jobs.models import Job, check_storable
from jobs.running_job import MAX_MESSAGE, RunningJob, retry_while_db_down
from jobs.webhooks.outbox import queue_job_event


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
WATCH_S = 0.25  # between checks whether coroutines were cancelled


def run_job(job_id: uuid.UUID, running: RunningJobs | None = None) -> None:
    """Run the job in this thread if it is queued, whatever its lane. An exception becomes the job's error."""
    running = RunningJobs() if running is None else running
    try:
        row = retry_while_db_down(lambda: claim_job(job_id, uuid.uuid4()), running.stopping)
    except JobInterrupted:
        return
    if row is None:
        return
    if _is_async(row):
        asyncio.run(CoroutineRuns(running).run(row))
    else:
        run_claimed(row, running)


def run_claimed(row: Job, running: RunningJobs) -> None:
    """Run a claimed job in this thread."""
    job = _running_job(row, running)
    with running.entry(job):
        if running.stopping.is_set():
            give_back(job)
        else:
            _run(row.kind, job)


class CoroutineRuns:
    """Runs of jobs as coroutines of one event loop. One query at a time finds those that were cancelled or lost."""

    def __init__(self, running: RunningJobs) -> None:
        self._running = running
        self._tasks: dict[uuid.UUID, tuple[RunningJob, asyncio.Task[Any]]] = {}
        self._watch: asyncio.Task[None] | None = None

    async def run(self, row: Job) -> None:
        """Run a claimed job to its end."""
        job = await _in_thread(lambda: _running_job(row, self._running))
        with self._running.entry(job), acting(job_origin(row.kind, job)):
            end: dict[str, Any] | BaseException
            try:
                end = await self._watched(row.kind, job)
            except (Exception, SystemExit, RunStopped) as error:  # noqa: BLE001 - an error is the end of its job only
                end = error
            await _in_thread(lambda: _conclude(row.kind, job, end))

    async def _watched(self, kind: str, job: RunningJob) -> dict[str, Any]:
        """Return the result of the run. Raise what ends it from outside."""
        run = cast("Callable[[RunningJob], Awaitable[dict[str, Any] | None]]", find_kind(kind).load_run())
        task = asyncio.ensure_future(run(job))
        self._tasks[job.claim] = (job, task)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watch_all())
        try:
            return await task or {}
        except asyncio.CancelledError:
            if job.lost.is_set():
                raise JobLost from None
            if job.cancelled.is_set():
                raise JobCancelled from None
            if job.stopping.is_set():
                raise JobInterrupted from None
            raise
        finally:
            del self._tasks[job.claim]

    async def _watch_all(self) -> None:
        """Cancel the tasks whose jobs have to end, until no task runs."""
        while self._tasks:
            await asyncio.sleep(WATCH_S)
            if not self._running.stopping.is_set():
                await self._note_cancelled()
            for job, task in list(self._tasks.values()):
                if (job.is_stopped or job.cancelled.is_set()) and not task.cancelling():  # once: it may clean up
                    task.cancel()

    async def _note_cancelled(self) -> None:
        jobs = {job.claim: job for job, _ in self._tasks.values()}
        rows = Job.objects.filter(claim__in=jobs, state=Job.State.RUNNING).values_list("claim", "cancel_requested")
        try:
            found: dict[uuid.UUID | None, bool] = dict(await _in_thread(lambda: list(rows)))
        except (OperationalError, InterfaceError) as error:
            logger.warning("Cancellations could not be read (%s). Trying again.", error)
            return
        for claim, job in jobs.items():
            if claim not in found:
                job.lost.set()
            elif found[claim]:
                job.cancelled.set()


async def _in_thread(work: Callable[[], Any]) -> Any:
    def with_own_connection() -> Any:
        with own_connection():
            return work()

    return await asyncio.to_thread(with_own_connection)


def _is_async(row: Job) -> bool:
    try:
        return find_kind(row.kind).is_async
    except JobError:  # the run will fail with it
        return False


def _running_job(row: Job, running: RunningJobs) -> RunningJob:
    assert row.claim is not None, "the row was just claimed"
    return RunningJob(
        row.id,
        row.claim,
        row.params,
        row.owner_id,
        row.checkpoint,
        retry_while_db_down(row.lines.count, running.stopping),
        running.stopping,
        lane=row.lane,
        turn_s=settings.MILLM_JOB_TURN_SECONDS,
        must_share=lambda: must_share(row.lane, row.account),
    )


def _run(kind: str, job: RunningJob) -> None:
    end: dict[str, Any] | BaseException
    try:
        with acting(job_origin(kind, job)):
            end = cast("dict[str, Any]", find_kind(kind).load_run()(job) or {})
    except (Exception, SystemExit, RunStopped) as error:  # noqa: BLE001 - what a run raises is its job's end, not its thread's
        end = error
    _conclude(kind, job, end)


def _conclude(kind: str, job: RunningJob, end: dict[str, Any] | BaseException) -> None:
    """Write the end of a run: its result, or what it raised."""
    if not isinstance(end, BaseException):
        try:
            result = check_storable(end, "result")
        except JobError as error:
            _fail(job, error)
            return
        keeps_row = find_kind(kind).keeps_succeeded
        _end(job, Job.State.SUCCEEDED, keeps_row=keeps_row, result=result, message="", done=F("total"))
    elif isinstance(end, JobCancelled):
        _end(job, Job.State.CANCELLED)
    elif isinstance(end, JobPostponed):
        give_back(job, end)
    elif isinstance(end, JobInterrupted):
        give_back(job)
    elif isinstance(end, JobLost):
        logger.warning("The job %s stopped in this process: another process runs it, or it was deleted.", job.id)
    else:
        _fail(job, end)


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


def _end(job: RunningJob, state: Job.State, *, keeps_row: bool = True, **values: Any) -> None:
    """Write the outcome, retrying while the database is down. A run that has lost its job writes nothing."""
    values |= {"state": state, "claim": None, "finished_at": Now()}
    try:
        if retry_while_db_down(lambda: _write_end(job, values, keeps_row=keeps_row), job.stopping):
            note_end(job.lane, state)
    except JobInterrupted:
        logger.warning("The outcome of the job %s could not be written. The job will run again.", job.id)


@transaction.atomic
def _write_end(job: RunningJob, values: dict[str, Any], *, keeps_row: bool) -> bool:
    """Write the outcome with its event. Return whether the run still had its job."""
    if not keeps_row:
        return bool(Job.objects.claimed(job.claim).delete()[0])
    if not Job.objects.claimed(job.claim).update(**values):
        return False
    queue_job_event(Job.objects.defer("params", "checkpoint", "result").get(pk=job.id))
    return True


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
        wake_workers(row.lane)
    else:  # a worker finds the job when it is due
        row.not_before, row.message = postponed.until, clean_text(postponed.reason, MAX_MESSAGE)
        row.save(update_fields=["state", "claim", "heartbeat_at", "not_before", "message"])
