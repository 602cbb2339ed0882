"""POST /v1/responses: from the request to the response, whole or as events."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from django.http.response import HttpResponseBase

from openai_api.backend import get_backend
from openai_api.call import Call
from openai_api.database import in_database
from openai_api.endpoint import json_response
from openai_api.errors import ApiError, server_error
from openai_api.responses.background import order_response
from openai_api.responses.chat_form import ChatBody
from openai_api.responses.context import owner_of, read_context
from openai_api.responses.event_writer import EventWriter
from openai_api.responses.file_search import FileSearch
from openai_api.responses.planning import PlannedChat, plan_response
from openai_api.responses.replay import stream_stored
from openai_api.responses.response_body import new_body
from openai_api.responses.rounds import Rounds
from openai_api.responses.run import ResponseRun
from openai_api.responses.schemas.bodies import ResponseStatus
from openai_api.responses.schemas.request import ResponseRequest
from openai_api.responses.search_order import search_order
from openai_api.responses.searching import Searching
from openai_api.responses.store import Turn
from openai_api.responses.wire import named_event
from openai_api.services.generation import Generation
from openai_api.services.reasoning import is_effort_without_effect
from openai_api.services.reply import streamed
from openai_api.services.target import find_wish
from openai_api.sse import PING

logger = logging.getLogger(__name__)


async def create_response(call: Call) -> HttpResponseBase:
    wanted = call.read(ResponseRequest)
    context = await read_context(call, wanted)
    search = FileSearch.of(wanted)
    if search is not None:
        await search.check(call)
    planned = await plan_response(call, wanted, context)
    if is_effort_without_effect(planned.target.model.text, planned.chat):
        call.note_ignored("reasoning.effort")
    status: ResponseStatus = "queued" if wanted.background else "in_progress"
    body = new_body(call.answer_id("resp_"), wanted, planned.target.model.record.name, status, planned.plan.params[0])
    call.entry.parameters["response"] = body["id"]
    searching = Searching(is_on=search is not None, shows_results=wanted.wants_search_results)
    searching.note(planned.items if searching.is_on else ())
    if wanted.background:
        turn = Turn(body, context.input, owner_of(call))
        return await _order(call, planned, search_order(wanted, searching), turn, is_streamed=bool(wanted.stream))
    first = Generation(call, planned.target, planned.plan)
    generation = Rounds(first, planned.body, search, max_searches=wanted.max_tool_calls)
    writer = EventWriter(body, searching=searching)
    writer.read(planned.answers, planned.target.model.text)
    run = ResponseRun(generation, writer, context.input)
    return await streamed(generation, _events(run)) if wanted.stream else await _collect(run)


async def _order(
    call: Call, planned: PlannedChat, search: Mapping[str, Any], turn: Turn, *, is_streamed: bool
) -> HttpResponseBase:
    """Leave it to a job; the client gets the queued response, or the events as the job writes them."""
    events = list(EventWriter(turn.body).created())
    order = {"chat": pinned(call, planned), "key": call.key.pk if call.key is not None else None, **search}
    priority = call.key.priority if call.key is not None else 0
    await in_database(
        lambda: order_response(turn=turn, order=order, priority=priority, events=events, is_streamed=is_streamed)
    )
    return stream_stored(call, turn.body["id"], -1) if is_streamed else json_response(turn.body)


def pinned(call: Call, planned: PlannedChat) -> ChatBody:
    """The chat with the profile that the request named, at the version that it means now, wherever it named it."""
    body: ChatBody = {**planned.body, "model": planned.target.model.record.name}
    wish = find_wish(call, planned.chat)
    if wish.is_given:
        profile = planned.target.profile
        body["profile"] = profile.label if profile is not None and profile.number else None
    return body


async def _collect(run: ResponseRun) -> HttpResponseBase:
    """Raises ApiError; nothing is kept then, since the client never learns the id."""
    try:
        async for _ in run.events(get_backend().ping_s):
            pass
    finally:
        run.generation.close()
    return json_response(run.writer.body)


async def _events(run: ResponseRun) -> AsyncGenerator[bytes, None]:
    call = run.generation.call
    try:
        async for event in run.events(get_backend().ping_s):
            yield PING if event is None else named_event(event)
    except ApiError as error:
        call.refuse(error)
        yield named_event(await run.failed(error))
    except Exception:
        logger.exception("Request %s failed in its stream.", call.id)
        hidden = server_error(call.id)
        call.refuse(hidden)
        yield named_event(await run.failed(hidden))
