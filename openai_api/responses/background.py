"""Background responses in the database: create, start, append events, stream, cancel, and end lost ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from itertools import count
from typing import Any

from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, transaction
from django.http.response import HttpResponseBase

from core.errors import MillmError
from core.text import clean_json
from jobs.errors import JobError
from jobs.models import Job
from jobs.services import account_of, cancel_job, enqueue_job
from openai_api.backend import get_backend
from openai_api.database import in_database
from openai_api.http.call import Call
from openai_api.http.errors import openai_error, server_error, timed_out, unavailable
from openai_api.http.sse import PING, EventSource, data_event, event_response
from openai_api.responses.errors import not_background
from openai_api.responses.event_writer import named_event
from openai_api.responses.models import StoredEvents, StoredResponse
from openai_api.responses.response_body import error_body
from openai_api.responses.schemas.bodies import Event
from openai_api.responses.store import (
    Turn,
    add_events,
    events_after,
    find_response,
    is_open,
    lock_open,
    queue_webhook,
    response_body,
    save_response,
)

KIND = "responses.generate"
HAS_CALLED = "has_called"  # in an order: tools of MCP servers were called


@transaction.atomic
def order_response(
    *, turn: Turn, order: dict[str, Any], priority: int, events: Sequence[Event], is_streamed: bool
) -> StoredResponse:
    """Store a queued response and the job that generates it; ``events`` are its first events."""
    order = {name: clean_json(value) for name, value in order.items()}
    row = save_response(turn=turn, is_background=True, is_streamed=is_streamed, order=order)
    owner = User.objects.filter(pk=turn.owner_id).first() if turn.owner_id is not None else None
    title = f"Background response of {row.model}"
    job = enqueue_job(
        kind=KIND,
        params={"response": row.pk},
        owner=owner,
        title=title,
        priority=priority,
        account=account_of(turn.owner_id, order["key"]),
    )
    row.job_id = job.pk
    row.save(update_fields=("job_id",))
    _add(row, events)
    return row


@transaction.atomic
def start_response(*, response_id: str, events: Sequence[Event]) -> bool:
    """Mark the response as in progress; False if it was cancelled or deleted."""
    row = lock_open(response_id)
    if row is None:
        return False
    row.status = StoredResponse.Status.IN_PROGRESS
    row.save(update_fields=("status",))
    _add(row, events)
    return True


@transaction.atomic
def tell_events(*, response_id: str, events: Sequence[Event]) -> bool:
    """Store new events of a streamed response; False if it was cancelled or deleted."""
    row = lock_open(response_id)
    if row is None:
        return False
    _add(row, events)
    return True


@transaction.atomic
def note_call(*, response_id: str) -> bool:
    """Record that the response calls tools of MCP servers; False if it was cancelled or deleted."""
    row = lock_open(response_id)
    if row is None:
        return False
    if not row.order.get(HAS_CALLED):
        row.order[HAS_CALLED] = True
        row.save(update_fields=("order",))
    return True


@transaction.atomic
def cancel_background_response(*, response_id: str, owner_id: int | None) -> StoredResponse:
    """Cancel the response unless it has ended. Raises MillmError 404, or 400 if it is not a background response."""
    row = find_response(response_id, owner_id)
    if not row.is_background:
        raise not_background()
    if _end(row, StoredResponse.Status.CANCELLED, None):
        _cancel_job(row)
    row.refresh_from_db()
    return row


@transaction.atomic
def delete_stored_response(*, response_id: str, owner_id: int | None) -> None:
    """Delete the response with its items and events, cancelling it first. Raises ResponseNotFoundError."""
    row = find_response(response_id, owner_id)
    if row.is_open:
        _cancel_job(row)
    row.delete()


def end_if_lost(response_id: str) -> None:
    """End a response whose job has ended without it: cancelled with the job, or failed."""
    row = StoredResponse.objects.filter(pk=response_id, status__in=StoredResponse.OPEN).first()
    job = job_of(row) if row is not None else None
    if row is None or (job is not None and not job.has_ended):
        return
    if job is not None and job.state == Job.State.CANCELLED:
        _end(row, StoredResponse.Status.CANCELLED, None)
    else:
        _end(row, StoredResponse.Status.FAILED, server_error(str(row.job_id)))


@transaction.atomic
def _end(row: StoredResponse, status: StoredResponse.Status, error: MillmError | None) -> bool:
    """End an open response from outside its run; False if it has ended."""
    locked = lock_open(row.pk)
    if locked is None:
        return False
    locked.status = status
    locked.body |= {"status": status.value, "error": None if error is None else error_body(error)}
    locked.order = {}
    locked.save(update_fields=("status", "body", "order"))
    queue_webhook(locked)
    # OpenAI has no event for a cancelled response: its stream ends as incomplete, and the object has the reason.
    kind = "response.failed" if status == StoredResponse.Status.FAILED else "response.incomplete"
    number = last_number(locked.pk) + 1
    _add(locked, [{"type": kind, "sequence_number": number, "response": response_body(locked)}])
    return True


def job_of(row: StoredResponse) -> Job | None:
    """Return the response's job, None if it was deleted."""
    return Job.objects.filter(pk=row.job_id).first() if row.job_id is not None else None


def last_number(response_id: str) -> int:
    """Return the number of the last stored event; -1 without events."""
    last = StoredEvents.objects.filter(response_id=response_id).order_by("last").last()
    return -1 if last is None else last.last


def _cancel_job(row: StoredResponse) -> None:
    job = job_of(row)
    if job is not None:
        try:
            cancel_job(job=job)
        except JobError:
            return  # it has just ended


def _add(row: StoredResponse, events: Sequence[Event]) -> None:
    if row.is_streamed:
        add_events(row=row, events=events)


POLL_S = 0.2
SLOW_POLL_S = 1.0  # after QUIET_S without an event, for example while queued
QUIET_S = 3.0
LOOK_EVERY = 25  # polls between checks that the response still has a job


def stream_stored(call: Call, response_id: str, after: int) -> HttpResponseBase:
    """Stream events numbered higher than ``after``. A client that disconnects can resume later."""
    return event_response(EventSource(_events(call, response_id, after), call.close))


async def _events(call: Call, response_id: str, after: int) -> AsyncGenerator[bytes, None]:
    try:
        async for event in _stored_events(call, response_id, after):
            yield PING if event is None else named_event(event)
    except MillmError as error:
        call.refuse(error)
        yield data_event(openai_error(error))
    except (OperationalError, InterfaceError):
        away = unavailable("The database is not available.", code="database_unavailable")
        call.refuse(away)
        yield data_event(openai_error(away))


async def _stored_events(call: Call, response_id: str, after: int) -> AsyncGenerator[Event | None, None]:
    """Yield stored events, and None while there are none; the poll interval grows while nothing arrives."""
    loop, ping_s = asyncio.get_running_loop(), get_backend().ping_s
    heard_at = said_at = time.monotonic()
    for poll in count():
        if poll % LOOK_EVERY == 0:
            await in_database(lambda: end_if_lost(response_id))
        may_grow, events = await in_database(partial(_next, response_id, after))
        for event in events:
            yield event
            after = event["sequence_number"]
        now = time.monotonic()
        if events:
            heard_at = said_at = now
        if not may_grow:
            return
        if now - said_at >= ping_s:
            said_at = now
            yield None
        if loop.time() >= call.deadline:
            raise timed_out(call.timeout_s, call.timeout_setting)
        await asyncio.sleep(POLL_S if now - heard_at < QUIET_S else SLOW_POLL_S)


def _next(response_id: str, after: int) -> tuple[bool, list[Event]]:
    """Return whether more may follow, and the events, in this order: the last events are stored with the end."""
    may_grow = is_open(response_id)
    return may_grow, events_after(response_id, after)
