"""Delivery of queued jobs to workers with procrastinate: each delivery wakes at most one worker.

A delivery carries only the id of a job. Whether the job runs is decided by its row (execution.py), so a duplicate
delivery has no effect, and the sweep replaces a lost one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from asgiref.sync import sync_to_async
from django.db import transaction
from procrastinate import App, PsycopgConnector
from procrastinate.contrib.django import connector_params
from procrastinate.contrib.django.django_connector import DjangoConnector
from procrastinate.contrib.django.models import ProcrastinateJob
from procrastinate.exceptions import AlreadyEnqueued
from procrastinate.jobs import Status

from jobs.models import Job

TASK = "jobs.run"
QUEUE = "jobs"
MAX_CONNECTIONS = 3
POOL_TIMEOUT_S = 5.0

_sender = App(connector=DjangoConnector())  # defers on Django's connection, inside its open transaction


def deliver(job: Job) -> None:
    """Send ``job`` to a worker when the transaction commits. A no-op if a delivery of it is already waiting."""
    send = _sender.configure_task(TASK, queue=QUEUE, priority=job.priority, queueing_lock=str(job.id))
    try:
        with transaction.atomic():
            send.defer(job_id=str(job.id))
    except AlreadyEnqueued:
        pass


def deliver_due() -> None:
    """Deliver the jobs that are due and have no waiting delivery."""
    waiting = ProcrastinateJob.objects.filter(task_name=TASK, status=Status.TODO.value)
    delivered = set(waiting.values_list("queueing_lock", flat=True))
    for job in Job.objects.due():
        if str(job.id) not in delivered:
            deliver(job)


@asynccontextmanager
async def receiving(receive: Callable[[str], Awaitable[None]]) -> AsyncIterator[App]:
    """Provide a procrastinate app for the current event loop, whose workers call ``receive`` with the id of a job.

    It has its own connections, because a worker waits for notifications, which Django's pool does not support.
    """
    params = await sync_to_async(connector_params, thread_sensitive=False)()
    connector = PsycopgConnector(kwargs=params, min_size=1, max_size=MAX_CONNECTIONS, timeout=POOL_TIMEOUT_S)
    app = App(connector=connector)

    async def run(job_id: str) -> None:
        await receive(job_id)

    app.task(name=TASK, queue=QUEUE)(run)
    async with app.open_async():
        yield app


async def drop_stalled(app: App, stall_s: float) -> None:
    """Delete deliveries to workers that no longer run."""
    stalled = await app.job_manager.get_stalled_jobs(queue=QUEUE, task_name=TASK, seconds_since_heartbeat=stall_s)
    for delivery in stalled:
        if delivery.id is not None:
            await app.job_manager.finish_job_by_id_async(delivery.id, Status.ABORTED, delete_job=True)
