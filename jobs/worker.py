"""The thread that runs jobs in a serving process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from django.db import connections, transaction
from django.db.models.functions import Now
from procrastinate import App

from jobs.deliveries import QUEUE, deliver, deliver_due, drop_stalled, receiving
from jobs.execution import RunningJobs, run_job
from jobs.models import Job, JobLine
from jobs.periodic import enqueue_due

MAX_CRASHES = 3


def recover_stalled(stall_s: float) -> None:
    """Queue jobs again that have had no heartbeat for ``stall_s`` seconds."""
    old = Job.objects.filter(state=Job.State.RUNNING, heartbeat_at__lt=Now() - timedelta(seconds=stall_s))
    with transaction.atomic():
        for row in old.select_for_update(skip_locked=True):
            _recover(row)


def delete_ended(retention_days: int) -> int:
    """Delete jobs that ended more than ``retention_days`` days ago, and return their number."""
    rows = Job.objects.ended().filter(finished_at__lt=Now() - timedelta(days=retention_days))
    return rows.delete()[1].get("jobs.Job", 0)


def sweep(*, stall_s: float, retention_days: int) -> None:
    recover_stalled(stall_s)
    deliver_due()
    delete_ended(retention_days)
    enqueue_due()


def _recover(row: Job) -> None:
    """Queue a job again after a crash; a job that crashes its process repeatedly fails."""
    row.claim = None
    row.crashes += 1
    if row.cancel_requested:
        _end(row, Job.State.CANCELLED)
    elif row.crashes >= MAX_CRASHES:
        _end(row, Job.State.FAILED, f"The process running this job crashed {row.crashes} times.")
    else:
        row.state = Job.State.QUEUED
        row.save()
        text = f"The process running this job ({row.worker}) crashed or hung. The job resumes from its last checkpoint."
        JobLine.objects.create(job=row, text=text)
        deliver(row)


def _end(row: Job, state: Job.State, error: str = "") -> None:
    row.state = state
    row.error = error
    row.finished_at = Now()
    row.save()


logger = logging.getLogger(__name__)
POLL_S = 2.0  # finds deliveries whose notification was missed, for example while Postgres restarted
MAX_BACKOFF_S = 5.0


class JobWorker:
    """Receives deliveries in an event loop in its own thread, and runs each job in another thread.

    The threads are daemons, so a job that does not end does not block shutdown; it is queued again after ``stall_s``.
    """

    def __init__(self, *, num_workers: int, stall_s: float, retention_days: int) -> None:
        self._num_workers = num_workers
        self._stall_s = stall_s
        self._retention_days = retention_days
        self._running = RunningJobs()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="job-worker", daemon=True)
        self._last_contact = time.monotonic()

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def interrupt(self) -> None:
        """Stop receiving jobs and return running ones to the queue. Does not wait; callable from any thread."""
        self._running.stopping.set()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stopping.set)

    def stop(self, timeout_s: float) -> None:
        """Wait for at most ``timeout_s`` until all jobs have ended or are back in the queue."""
        self.interrupt()
        deadline = time.monotonic() + timeout_s
        if not self._running.wait_until_none(timeout_s):
            logger.warning("%d job(s) did not stop in time. They will run again.", len(self._running))
        self._thread.join(max(0.5, deadline - time.monotonic()))

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._slots = asyncio.Semaphore(self._num_workers)
        self._ready.set()
        beats = asyncio.create_task(self._beat_forever())
        backoff_s = MAX_BACKOFF_S / 16
        while not self._stopping.is_set():
            started = time.monotonic()
            await self._work_until_fault()
            backoff_s = MAX_BACKOFF_S / 16 if time.monotonic() - started > 60 else min(2 * backoff_s, MAX_BACKOFF_S)
            await self._pause(backoff_s)
        beats.cancel()

    async def _work_until_fault(self) -> None:
        try:
            async with receiving(self._receive) as app:
                await self._sweep(app)
                await _first_of(self._sweep_forever(app), self._take_deliveries(app), self._stopping.wait())
        except Exception as error:  # noqa: BLE001 - the thread outlives every fault of the database
            logger.warning("The job worker lost its database connection (%s). Retrying.", error)

    async def _take_deliveries(self, app: App) -> None:
        """Receive deliveries until the connection is lost or the task is cancelled."""
        await app.run_worker_async(
            queues=[QUEUE],
            concurrency=self._num_workers,
            install_signal_handlers=False,
            fetch_job_polling_interval=POLL_S,
            delete_jobs="always",  # the outcome is stored in the job's row
            shutdown_graceful_timeout=0,  # jobs run in threads that procrastinate does not wait for
            update_heartbeat_interval=self._stall_s / 6,
            stalled_worker_timeout=self._stall_s,
        )

    async def _receive(self, job_id: str) -> None:
        """Run a job in a thread and wait for its end. The slot is occupied until the thread ends."""
        await self._slots.acquire()
        if self._stopping.is_set():
            self._slots.release()
            return
        ended = asyncio.Event()

        def notify() -> None:
            self._slots.release()
            ended.set()

        threading.Thread(target=self._run, args=(job_id, notify), name=f"job-{job_id}", daemon=True).start()
        await ended.wait()

    def _run(self, job_id: str, notify: Callable[[], None]) -> None:
        try:
            run_job(uuid.UUID(job_id), self._running)
        except BaseException:
            logger.exception("The job %s could not be run.", job_id)
        finally:
            connections.close_all()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(notify)

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(self._stall_s / 6)
            try:
                await _in_thread(self._running.beat)
            except Exception as error:  # noqa: BLE001 - the next beat may reach the database again
                logger.warning("The heartbeat of %d job(s) could not be written: %s", len(self._running), error)

    async def _sweep_forever(self, app: App) -> None:
        while True:
            await asyncio.sleep(self._stall_s / 3)
            await self._sweep(app)

    async def _sweep(self, app: App) -> None:
        """Recover stalled jobs, except after a database outage, when all heartbeats are old."""
        silent_s = time.monotonic() - self._last_contact
        await drop_stalled(app, self._stall_s)
        self._last_contact = time.monotonic()
        if silent_s < self._stall_s:
            await _in_thread(lambda: sweep(stall_s=self._stall_s, retention_days=self._retention_days))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


async def _first_of(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Wait until one task ends, cancel the others, and re-raise an exception of any of them."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


async def _in_thread(act: Callable[[], None]) -> None:
    await asyncio.to_thread(_with_own_connection, act)


def _with_own_connection(act: Callable[[], None]) -> None:
    try:
        act()
    finally:
        connections.close_all()
