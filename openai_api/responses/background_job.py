"""The job that generates a background response.

The request was validated when it was created. It is resolved again here, perhaps in another process days later, so a
key revoked or a profile archived in between has effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.http import HttpRequest

from core.errors import MillmError
from jobs.errors import JobInterrupted, RunStopped
from jobs.running_job import RunningJob, retry_while_db_down
from openai_api.backend import get_backend
from openai_api.database import in_database_however_long
from openai_api.endpoints.chat import plan_chat
from openai_api.generation.run import Generation
from openai_api.generation.target import resolve_target
from openai_api.http.call import Call
from openai_api.http.errors import server_error, timed_out, wrong_key
from openai_api.keys.record import KeyRecord
from openai_api.responses.background import (
    HAS_CALLED,
    cancel_background_response,
    last_number,
    note_call,
    start_response,
    tell_events,
)
from openai_api.responses.errors import ResponseNotFoundError
from openai_api.responses.event_writer import EventWriter
from openai_api.responses.file_search import FileSearch, Searching
from openai_api.responses.mcp import RemoteTools
from openai_api.responses.models import StoredResponse
from openai_api.responses.schemas.bodies import Event
from openai_api.responses.schemas.request import ResponseRequest
from openai_api.responses.schemas.tools import FileSearchTool
from openai_api.responses.store import Turn, end_response, response_body
from openai_api.responses.tool_loop import ToolLoop, generated
from openai_api.schemas.chat import ChatRequest

ENDPOINT = "/v1/responses (background)"


class BackgroundCall(Call):
    timeout_setting = "MILLM_BACKGROUND_TIMEOUT"

    def __init__(self, response_id: str, trace: Mapping[str, str]) -> None:
        super().__init__(HttpRequest(), ENDPOINT, trace=trace)
        self.parameters = {"response": response_id}


async def key_of(pk: int | None) -> KeyRecord | None:
    """Return the key that created the response, or None. Raises MillmError 401 if it may not be used any more."""
    if pk is None:
        return None
    for record in (await get_backend().keys()).values():
        if record.pk == pk:
            return record
    raise wrong_key()


def tool_order(request: ResponseRequest, searching: Searching, remote: RemoteTools) -> dict[str, Any]:
    """Return what the job needs of the tools that this server runs."""
    order: dict[str, Any] = {"max_calls": request.max_tool_calls, "mcp": remote.order()}
    if request.file_search is not None:
        place, tool = request.file_search
        order["search"] = {
            "tool": tool.model_dump(mode="json", exclude_none=True),
            "place": place,
            "shows_results": searching.shows_results,
            "sources": searching.sources,
        }
    return order


def ordered_search(order: Mapping[str, Any]) -> tuple[FileSearch | None, Searching]:
    """Return the search and its state."""
    given = order.get("search")
    if given is None:
        return None, Searching(is_on=False)
    searching = Searching(shows_results=given["shows_results"], sources=list(given["sources"]))
    return FileSearch(FileSearchTool.model_validate(given["tool"]), given["place"]), searching


logger = logging.getLogger(__name__)
TELL_S = 0.25  # between writes of new events
MAX_PAUSE_S = 2.0  # between attempts to be admitted
PASSING = frozenset({"rate_limit_exceeded", "server_is_overloaded", "model_not_ready"})  # errors that are worth a retry
LIFECYCLE = ("response.created", "response.queued", "response.in_progress")  # events before any output
INTERRUPTED = "The server stopped while streaming this response. Create it again."
CALLED = "The server stopped after this response had called tools, which are not called twice. Create it again."


class ResponseEndedError(Exception):
    """The response was cancelled or deleted."""


async def generate_response(job: RunningJob) -> None:
    run = await in_database_however_long(lambda: retry_while_db_down(lambda: _open_run(job), job.stopping))
    if run is None:
        return
    try:
        await run.run()
    except ResponseEndedError:
        # Its job is cancelled too, unless it was deleted.
        await in_database_however_long(job.check_cancelled)
    except asyncio.CancelledError:
        if job.cancelled.is_set():
            await in_database_however_long(run.cancel)
        raise


def _open_run(job: RunningJob) -> BackgroundRun | None:
    """Return the run of the job's response; None if the response has ended."""
    row = StoredResponse.objects.filter(pk=job.params["response"]).first()
    return BackgroundRun(job, row, last_number(row.pk)) if row is not None and row.is_open else None


class BackgroundRun:
    """One attempt. ``last`` is the number of the last event that earlier attempts stored."""

    def __init__(self, job: RunningJob, row: StoredResponse, last: int) -> None:
        self._job = job
        self._row = row
        self._has_begun = row.status == StoredResponse.Status.IN_PROGRESS
        self._last = last
        self._input = [item.body for item in row.items.filter(is_output=False)]
        self._search, searching = ordered_search(row.order)
        remote = RemoteTools.ordered(row.order.get("mcp", {}))
        self._writer = EventWriter(response_body(row), first_number=last + 1, searching=searching, remote=remote)

    def cancel(self) -> None:
        """End the response as cancelled."""
        with suppress(ResponseNotFoundError):  # just deleted
            cancel_background_response(response_id=self._row.pk, owner_id=self._row.owner_id)

    async def run(self) -> None:
        call = BackgroundCall(self._row.pk, self._row.order.get("trace", {}))
        try:
            call.status = 200
            await self._run(call)
        except MillmError as error:
            await self._fail(call, error)
        except (ResponseEndedError, RunStopped, asyncio.CancelledError):
            call.error_code = f"response_{'interrupted' if self._job.stopping.is_set() else 'cancelled'}"
            raise
        except Exception:
            logger.exception("The background response %s failed.", self._row.pk)
            await self._fail(call, server_error(call.id))
        finally:
            call.close()

    async def _run(self, call: BackgroundCall) -> None:
        if self._row.is_streamed and self._last >= len(LIFECYCLE):  # clients may have read part of the output
            raise MillmError(INTERRUPTED, status=500, code="response_interrupted")
        if self._row.order.get(HAS_CALLED):
            raise MillmError(CALLED, status=500, code="response_interrupted")
        events: list[Event] = []
        if self._has_begun:
            self._writer.resume()
        else:
            events = list(self._writer.started())
        await self._insist(lambda: start_response(response_id=self._row.pk, events=events))
        generation = await self._admitted(call)
        try:
            await self._generate(generation)
        finally:
            generation.close()

    async def _admitted(self, call: BackgroundCall) -> ToolLoop:
        """Wait for the key's limits and for space in the engine."""
        key = await key_of(self._row.order["key"])
        chat = ChatRequest.parse(self._row.order["chat"])
        while True:
            try:
                await call.admit(key, is_counted=True)
                target = await resolve_target(call, chat)
                plan, answers = await plan_chat(chat, target)
                self._writer.read(answers, target.model.text)
                first = await Generation.start(call, target, plan)
                return ToolLoop(
                    first,
                    self._row.order["chat"],
                    self._search,
                    max_calls=self._row.order.get("max_calls"),
                    before_call=self._note_call,
                )
            except MillmError as error:
                if error.code not in PASSING:
                    raise
                wait_s = error.retry_after_s or MAX_PAUSE_S
            call.withdraw()
            await self._pause(call, wait_s)

    async def _note_call(self) -> None:
        """Record that tools are called, unless the response was cancelled or deleted."""
        await self._insist(lambda: note_call(response_id=self._row.pk))

    async def _pause(self, call: BackgroundCall, wait_s: float) -> None:
        if asyncio.get_running_loop().time() >= call.deadline:
            raise timed_out(call.timeout_s, call.timeout_setting)
        await asyncio.sleep(min(wait_s, MAX_PAUSE_S))

    async def _generate(self, generation: ToolLoop) -> None:
        """Generate, and store events now and then if they may be streamed."""
        loop, events = asyncio.get_running_loop(), list[Event]()
        told_at = loop.time()
        async for event in generated(generation, self._writer, TELL_S):
            if event is not None and self._row.is_streamed:
                events.append(event)
            if events and loop.time() - told_at >= TELL_S:
                told, events = events, []
                await self._insist(lambda: tell_events(response_id=self._row.pk, events=told))  # noqa: B023 - awaited at once
                told_at = loop.time()
        await self._end(events)

    async def _fail(self, call: BackgroundCall, error: MillmError) -> None:
        """End the response as failed, unless the process is stopping: then the job runs again in the next one."""
        call.refuse(error)
        call.status = error.status
        if self._job.is_stopped:
            raise JobInterrupted
        self._writer.fail(error)
        await self._end([])

    async def _end(self, events: Sequence[Event]) -> None:
        turn = Turn(self._writer.body, self._input, self._row.owner_id)
        last = [*events, self._writer.ended()] if self._row.is_streamed else []
        await self._insist(lambda: end_response(turn=turn, events=last))

    async def _insist(self, write: Callable[[], bool]) -> None:
        """Retry the write until the database is back. Raises ResponseEndedError if the response has ended."""
        if not await in_database_however_long(lambda: retry_while_db_down(write, self._job.stopping)):
            raise ResponseEndedError
