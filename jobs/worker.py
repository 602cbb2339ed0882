"""The thread that runs jobs in a serving process: it claims the next job of each lane when a worker is free."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.models import Count
from django.db.models.functions import Now
from psycopg import sql

from jobs.claims import CHANNEL, claim_next, wake_workers
from jobs.execution import CoroutineRuns, RunningJobs, run_claimed
from jobs.lanes import Lane
from jobs.metrics import note_queued, note_start, note_stop
from jobs.models import Job, JobLine
from jobs.periodic import enqueue_due
from jobs.webhooks.outbox import queue_job_event

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
    delete_ended(retention_days)
    enqueue_due()
    note_queued(dict(Job.objects.due().order_by().values_list("lane").annotate(Count("pk"))))


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
        wake_workers(row.lane)


def _end(row: Job, state: Job.State, error: str = "") -> None:
    row.state = state
    row.error = error
    row.finished_at = Now()
    row.save()
    queue_job_event(row)


logger = logging.getLogger(__name__)
POLL_S = 2.0  # finds postponed jobs that are due, and jobs whose notification was missed
MAX_BACKOFF_S = 5.0


@dataclass(frozen=True, slots=True)
class Slots:
    """How many jobs of a process run at once: threads by lane, and coroutines of the lane ``interactive``.

    An account with running jobs in a lane gets at most ``max_share`` of its slots, but at least one.
    """

    threads: Mapping[str, int]
    coroutines: int = 0
    max_share: float = 1.0


class Pool:
    """The slots of a lane for threads or for coroutines, and which accounts use them. Thread-safe."""

    def __init__(self, lane: Lane, size: int, max_share: float, *, is_async: bool) -> None:
        self.lane = lane
        self.is_async = is_async
        self.changed = asyncio.Event()  # of the worker's event loop
        self._size = size
        self._max_per_account = max(1, math.ceil(size * max_share))
        self._lock = threading.Lock()
        self._num_reserved = 0
        self._accounts: Counter[str] = Counter()

    def reserve(self) -> bool:
        """Take a slot, if one is free, for a job to be claimed; :meth:`release` returns it."""
        with self._lock:
            has_room = self._num_reserved < self._size
            self._num_reserved += has_room
            return has_room

    def enter(self, account: str) -> None:
        with self._lock:
            self._accounts[account] += 1

    def leave(self, account: str) -> None:
        with self._lock:
            self._accounts[account] -= 1
        self.release()

    def release(self) -> None:
        with self._lock:
            self._num_reserved -= 1

    def full_accounts(self) -> set[str]:
        """Return the accounts that have their share. The server's own jobs have no limit."""
        with self._lock:
            return {name for name, count in self._accounts.items() if name and count >= self._max_per_account}


class JobWorker:
    """Claims jobs in an event loop in its own thread, and runs each in another thread or as a coroutine of the loop.

    The threads are daemons, so a job that does not end does not block shutdown; it is queued again after ``stall_s``.
    """

    def __init__(self, *, slots: Slots, stall_s: float, retention_days: int) -> None:
        self._slots = slots
        self._stall_s = stall_s
        self._retention_days = retention_days
        self._running = RunningJobs()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="job-worker", daemon=True)
        self._last_contact = time.monotonic()
        self._lock = threading.Lock()
        self._num_starting = 0
        self._runs: set[Future[None]] = set()  # of coroutines, from the claim of their job

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def interrupt(self) -> None:
        """Stop claiming jobs and return running ones to the queue. Does not wait; callable from any thread."""
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
        self._coroutines = CoroutineRuns(self._running)
        self._pools = _pools(self._slots)
        self._ready.set()
        beats = asyncio.create_task(self._beat_forever())
        backoff_s = MAX_BACKOFF_S / 16
        while not self._stopping.is_set():
            started = time.monotonic()
            await self._work_until_fault()
            backoff_s = MAX_BACKOFF_S / 16 if time.monotonic() - started > 60 else min(2 * backoff_s, MAX_BACKOFF_S)
            await self._pause(backoff_s)
        # A job that was claimed just now still runs, so that it returns to the queue.
        while self._num_starting or self._runs:  # noqa: ASYNC110 - other threads change them
            await asyncio.sleep(0.01)
        beats.cancel()

    async def _work_until_fault(self) -> None:
        try:
            async with _listening() as connection:
                await self._sweep()
                work = [self._fill_forever(pool) for pool in self._pools]
                await _first_of(self._wake_pools(connection), self._sweep_forever(), self._stopping.wait(), *work)
        except Exception as error:  # noqa: BLE001 - the thread outlives every fault of the database
            logger.warning("The job worker lost its database connection (%s). Retrying.", error)

    async def _wake_pools(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Wake the pools of the lanes that are notified, and all of them now and then."""
        while True:
            await connection.execute("SELECT 1")  # fails if the server vanished without closing the connection
            for pool in self._pools:
                pool.changed.set()
            polled_at = time.monotonic()
            while (left_s := polled_at + POLL_S - time.monotonic()) > 0:
                async for notification in connection.notifies(timeout=left_s, stop_after=1):
                    self._wake(notification.payload)

    def _wake(self, lane: str) -> None:
        for pool in self._pools:
            if pool.lane == lane:
                pool.changed.set()

    async def _fill_forever(self, pool: Pool) -> None:
        """Start jobs whenever the pool has free slots and something may have changed."""
        while True:
            await pool.changed.wait()
            pool.changed.clear()
            while await _in_thread(lambda: self._start_next(pool)):
                pass

    def _start_next(self, pool: Pool) -> bool:
        """Claim the next job and start it. In one thread, so that a claimed job starts even if its caller is gone."""
        with self._starting():
            return self._claim_and_start(pool)

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        with self._lock:
            self._num_starting += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_starting -= 1

    def _claim_and_start(self, pool: Pool) -> bool:
        if self._running.stopping.is_set() or not pool.reserve():
            return False
        try:
            row = claim_next(pool.lane, uuid.uuid4(), is_async=pool.is_async, full=pool.full_accounts())
        except BaseException:
            pool.release()
            raise
        if row is None:
            pool.release()
            return False
        pool.enter(row.account)
        note_start(row)
        if pool.is_async:
            run = asyncio.run_coroutine_threadsafe(self._run_coroutine(pool, row), self._loop)
            self._runs.add(run)
            run.add_done_callback(self._runs.discard)
        else:
            name = f"job-{row.pk}"
            threading.Thread(target=self._run_thread, args=(pool, row), name=name, daemon=True).start()
        return True

    async def _run_coroutine(self, pool: Pool, row: Job) -> None:
        try:
            await self._coroutines.run(row)
        except Exception:
            logger.exception("The job %s could not be run.", row.pk)
        finally:
            self._leave(pool, row)

    def _run_thread(self, pool: Pool, row: Job) -> None:
        try:
            run_claimed(row, self._running)
        except BaseException:
            logger.exception("The job %s could not be run.", row.pk)
        finally:
            connections.close_all()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._leave, pool, row)

    def _leave(self, pool: Pool, row: Job) -> None:
        pool.leave(row.account)
        note_stop(row)
        pool.changed.set()

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(self._stall_s / 6)
            try:
                await _in_thread(self._running.beat)
            except Exception as error:  # noqa: BLE001 - the next beat may reach the database again
                logger.warning("The heartbeat of %d job(s) could not be written: %s", len(self._running), error)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self._stall_s / 3)
            await self._sweep()

    async def _sweep(self) -> None:
        """Recover stalled jobs, except after a database outage, when all heartbeats are old."""
        silent_s = time.monotonic() - self._last_contact
        await _in_thread(_touch)
        self._last_contact = time.monotonic()
        if silent_s < self._stall_s:
            await _in_thread(lambda: sweep(stall_s=self._stall_s, retention_days=self._retention_days))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


def _pools(slots: Slots) -> list[Pool]:
    sizes = [(Lane(name), size) for name, size in slots.threads.items()]
    threads = [Pool(lane, size, slots.max_share, is_async=False) for lane, size in sizes if size]
    coroutines = [Pool(Lane.INTERACTIVE, slots.coroutines, slots.max_share, is_async=True)] if slots.coroutines else []
    return threads + coroutines


@contextlib.asynccontextmanager
async def _listening() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Open a connection that receives the notifications of queued jobs; outside Django's pool, because it is held."""
    params = await asyncio.to_thread(connections[DEFAULT_DB_ALIAS].get_connection_params)
    del params["cursor_factory"], params["context"]  # Django's, for synchronous cursors
    opened = psycopg.AsyncConnection.connect(**{**params, "autocommit": True, "tcp_user_timeout": 15_000})
    async with await opened as connection:
        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
        yield connection


def _touch() -> None:
    """Query the database, to find out whether it is up."""
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute("SELECT 1")


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


async def _in_thread(act: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(_with_own_connection, act)


def _with_own_connection(act: Callable[[], Any]) -> Any:
    try:
        return act()
    finally:
        connections.close_all()
