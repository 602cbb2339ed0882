"""The job that generates a background response.

What was ordered was checked when it was ordered. It is resolved again here, perhaps in another process days later, so
that a key that was revoked or a profile that was archived in between counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from inference.client import EngineError, QueueFullError
from jobs.errors import JobCancelled, JobInterrupted, JobLost
from jobs.patience import patiently
from jobs.running_job import RunningJob
from openai_api.database import in_database_however_long
from openai_api.errors import ApiError, server_error, timed_out, unavailable
from openai_api.responses.background import begin_response, cancel_response, last_number, tell_events
from openai_api.responses.background_call import BackgroundCall, key_of
from openai_api.responses.event_writer import EventWriter
from openai_api.responses.models import StoredResponse
from openai_api.responses.rounds import Rounds
from openai_api.responses.run import generated
from openai_api.responses.schemas.bodies import Event
from openai_api.responses.search_order import ordered_search
from openai_api.responses.store import NotFoundError, Turn, end_response, response_body
from openai_api.schemas.chat import ChatRequest
from openai_api.services.chat import plan_chat
from openai_api.services.generation import Generation
from openai_api.services.target import resolve_target

logger = logging.getLogger(__name__)
TELL_S = 0.25  # between writes of new events, and looks whether the response is still wanted
MAX_PAUSE_S = 2.0  # between attempts to be taken in
PASSING = frozenset({"rate_limit_exceeded", "server_is_overloaded", "model_not_ready"})  # what is worth waiting for
LIFECYCLE = ("response.created", "response.queued", "response.in_progress")  # what comes before any output
INTERRUPTED = "The server stopped while it streamed this response, so the rest is missing. Create it again."


class NotWantedError(Exception):
    """The response was cancelled or deleted."""


def generate_response(job: RunningJob) -> None:
    row = StoredResponse.objects.filter(pk=job.params["response"]).first()
    if row is None or not row.is_open:
        return
    run = BackgroundRun(job, row, last_number(row.pk))
    try:
        asyncio.run(run.run())
    except NotWantedError:
        job.check_cancelled()  # its job was cancelled with it, if it was not deleted
    except JobCancelled:
        _cancel(row)
        raise


def _cancel(row: StoredResponse) -> None:
    try:
        cancel_response(response_id=row.pk, owner_id=row.owner_id)
    except NotFoundError:
        return  # deleted just now


class BackgroundRun:
    """One attempt. ``last`` is the number of the last event that earlier attempts stored."""

    def __init__(self, job: RunningJob, row: StoredResponse, last: int) -> None:
        self._job = job
        self._row = row
        self._has_begun = row.status == StoredResponse.Status.IN_PROGRESS
        self._last = last
        self._input = [item.body for item in row.items.filter(is_output=False)]
        self._search, searching, self._max_searches = ordered_search(row.order)
        self._writer = EventWriter(response_body(row), first_number=last + 1, searching=searching)

    async def run(self) -> None:
        call = BackgroundCall(self._row.pk)
        try:
            call.entry.status = 200
            await self._run(call)
        except ApiError as error:
            await self._fail(call, error)
        except (NotWantedError, JobCancelled, JobInterrupted, JobLost) as end:
            call.entry.error_code = f"response_{'interrupted' if isinstance(end, JobInterrupted) else 'cancelled'}"
            raise
        except Exception:
            logger.exception("The background response %s failed.", self._row.pk)
            await self._fail(call, server_error(call.id))
        finally:
            call.close()

    async def _run(self, call: BackgroundCall) -> None:
        if self._row.is_streamed and self._last >= len(LIFECYCLE):  # clients may have seen some of the output
            raise ApiError(500, INTERRUPTED, error_type="server_error", code="response_interrupted")
        events = [] if self._has_begun else list(self._writer.started())
        await self._insist(lambda: begin_response(response_id=self._row.pk, events=events))
        generation = await self._admitted(call)
        try:
            await self._generate(generation)
        finally:
            generation.close()

    async def _admitted(self, call: BackgroundCall) -> Rounds:
        """Wait for the key's limits and for room in the engine: nobody else waits for a background response."""
        key = await key_of(self._row.order["key"])
        chat = ChatRequest.parse(self._row.order["chat"])
        while True:
            try:
                call.admit(key, is_counted=True)
                target = await resolve_target(call, chat)
                plan, answers = await plan_chat(chat, target)
                self._writer.read(answers, target.model.text)
                first = Generation(call, target, plan)
                return Rounds(first, self._row.order["chat"], self._search, max_searches=self._max_searches)
            except QueueFullError as error:
                wait_s = error.retry_after_s
            except EngineError as error:
                raise unavailable(str(error), code=error.code) from None
            except ApiError as error:
                if error.code not in PASSING:
                    raise
                wait_s = error.retry_after_s or MAX_PAUSE_S
            call.withdraw()
            await self._pause(call, wait_s)

    async def _pause(self, call: BackgroundCall, wait_s: float) -> None:
        if asyncio.get_running_loop().time() >= call.deadline:
            raise timed_out(call.timeout_s, call.timeout_setting)
        await self._insist(lambda: self._tell(()))
        await asyncio.sleep(min(wait_s, MAX_PAUSE_S))

    async def _generate(self, generation: Rounds) -> None:
        loop, events = asyncio.get_running_loop(), list[Event]()
        told_at = loop.time()
        async for event in generated(generation, self._writer, TELL_S):
            if event is not None:
                events.append(event)
            if loop.time() - told_at >= TELL_S:
                told, events = events, []
                await self._insist(lambda: self._tell(told))  # noqa: B023 - awaited at once
                told_at = loop.time()
        await self._end(events)

    async def _fail(self, call: BackgroundCall, error: ApiError) -> None:
        """The response ends as failed, unless the whole process stops: then the job runs again in the next one."""
        call.refuse(error)
        call.entry.status = error.status
        if self._job.is_stopped:
            raise JobInterrupted
        self._writer.fail(error)
        await self._end([])

    async def _end(self, events: Sequence[Event]) -> None:
        turn = Turn(self._writer.body, self._input, self._row.owner_id)
        last = [*events, self._writer.ended()] if self._row.is_streamed else []
        await self._insist(lambda: end_response(turn=turn, events=last))

    def _tell(self, events: Sequence[Event]) -> bool:
        self._job.check_cancelled()
        return tell_events(response_id=self._row.pk, events=events)

    async def _insist(self, write: Callable[[], bool]) -> None:
        """Write, however long the database is away; raises NotWantedError where the response has ended meanwhile."""
        if not await in_database_however_long(lambda: patiently(write, self._job.stopping)):
            raise NotWantedError
