"""Handlers of /v1/responses: create, retrieve, list input items, cancel, delete, compact, count tokens."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from django.http.response import HttpResponseBase

from core.errors import MillmError, quote
from core.ids import new_id
from inference.client import Usage
from openai_api.backend import get_backend
from openai_api.database import in_database
from openai_api.endpoints.chat import plan_chat
from openai_api.endpoints.pagination import page_of_items
from openai_api.generation.chat_chunks import ChatChunks, ChatFold
from openai_api.generation.prompt import is_effort_without_effect
from openai_api.generation.reply import collect, streamed
from openai_api.generation.run import Generation
from openai_api.generation.target import default_model, requested_profile, resolve_target
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid, renaming, server_error
from openai_api.http.sse import PING
from openai_api.responses.background import (
    cancel_background_response,
    delete_stored_response,
    end_if_lost,
    order_response,
    stream_stored,
)
from openai_api.responses.background_job import tool_order
from openai_api.responses.chat_form import ChatBody
from openai_api.responses.event_writer import EventWriter, named_event
from openai_api.responses.file_search import FileSearch, Searching
from openai_api.responses.items import compaction_item, item_text, user_message
from openai_api.responses.mcp import RemoteTools
from openai_api.responses.models import StoredResponse
from openai_api.responses.planning import Context, PlannedChat, plan_response, read_context
from openai_api.responses.response_body import new_body, usage_body
from openai_api.responses.schemas.bodies import (
    CompactionBody,
    InputTokensBody,
    Item,
    ResponseBody,
    ResponseDeletedBody,
    ResponseStatus,
)
from openai_api.responses.schemas.request import CompactionRequest, ResponseRequest, TokenCountRequest
from openai_api.responses.store import Turn, input_of, read_response, response_body
from openai_api.responses.tool_loop import ResponseRun, ToolLoop
from openai_api.schemas.base import ListQuery
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.generation import SteeredSchema

logger = logging.getLogger(__name__)


async def create_response(call: Call) -> HttpResponseBase:
    request = call.read(ResponseRequest)
    context = await read_context(call, request)
    search = FileSearch.of(request)
    if search is not None:
        await search.check(call)
    remote = RemoteTools.of(request)
    await remote.prepare(call, context.items)
    planned = await plan_response(call, request, context, remote)
    if await remote.run_approved(call, context.items):  # only for a response that can be made
        planned = await plan_response(call, request, context, remote)
    if is_effort_without_effect(planned.target.model.text, planned.chat):
        call.note_ignored("reasoning.effort")
    status: ResponseStatus = "queued" if request.background else "in_progress"
    body = new_body(call.answer_id("resp_"), request, planned.target.model.record.name, status, planned.plan.params[0])
    call.parameters["response"] = body["id"]
    searching = Searching(is_on=search is not None, shows_results=request.wants_search_results)
    searching.note(planned.items if searching.is_on else ())
    if request.background:
        turn = Turn(body, context.input, call.owner_id)
        tools = tool_order(request, searching, remote)
        return await _order(call, planned, tools, turn, is_streamed=bool(request.stream))
    first = await Generation.start(call, planned.target, planned.plan)
    generation = ToolLoop(first, planned.body, search, max_calls=request.max_tool_calls)
    writer = EventWriter(body, searching=searching, remote=remote)
    writer.read(planned.answers, planned.target.model.text)
    run = ResponseRun(generation, writer, context.input)
    return await streamed(generation, _events(run)) if request.stream else await _collect(run)


async def _order(
    call: Call, planned: PlannedChat, tools: Mapping[str, Any], turn: Turn, *, is_streamed: bool
) -> HttpResponseBase:
    """Create a background response; return it as queued, or stream its events as the job writes them."""
    events = list(EventWriter(turn.body).created())
    order = {"chat": pinned(call, planned), "key": call.key.pk if call.key is not None else None, **tools}
    order["trace"] = call.trace_context()
    priority = call.key.priority if call.key is not None else 0
    await in_database(
        lambda: order_response(turn=turn, order=order, priority=priority, events=events, is_streamed=is_streamed)
    )
    return stream_stored(call, turn.body["id"], -1) if is_streamed else json_response(turn.body)


def pinned(call: Call, planned: PlannedChat) -> ChatBody:
    """Return the chat with its profile pinned to the current version."""
    body: ChatBody = {**planned.body, "model": planned.target.model.record.name}
    if requested_profile(call, planned.chat).is_given:
        profile = planned.target.profile
        body["profile"] = profile.label if profile is not None and profile.number else None
    return body


async def _collect(run: ResponseRun) -> HttpResponseBase:
    """Return the whole response. Raises MillmError; nothing is stored then, since the client has no id."""
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
    except MillmError as error:
        call.refuse(error)
        yield named_event(await run.failed(error))
    except Exception:
        logger.exception("Request %s failed while streaming.", call.id)
        hidden = server_error(call.id)
        call.refuse(hidden)
        yield named_event(await run.failed(hidden))


MAX_NUMBER = 10**9


async def get_response(call: Call, response_id: str) -> HttpResponseBase:
    """Return the object; with ``stream=true`` stream the events of a background response, future ones included.

    ``starting_after`` has no effect without ``stream``.
    """
    owner_id, query = call.owner_id, call.request.GET
    wants_stream = read_flag(query.get("stream", "false"), "stream")
    after = query.get("starting_after")
    number = read_number(after, "starting_after", least=0, most=MAX_NUMBER) if after is not None else None
    row, body = await in_database(lambda: _read(response_id, owner_id))
    if not wants_stream:
        return json_response(body)
    if not row.is_streamed:
        message = "Only responses created with `background` and `stream` can be streamed again."
        raise invalid(message, param="stream")
    return stream_stored(call, response_id, -1 if number is None else number)


async def delete_response(call: Call, response_id: str) -> HttpResponseBase:
    """Delete a response, cancelling it first if it is in progress. Responses that continue it keep their own items."""
    owner_id = call.owner_id
    await in_database(lambda: delete_stored_response(response_id=response_id, owner_id=owner_id))
    body: ResponseDeletedBody = {"id": response_id, "object": "response", "deleted": True}
    return json_response(body)


async def list_input_items(call: Call, response_id: str) -> HttpResponseBase:
    query, owner_id = ListQuery.parse(call.request.GET), call.owner_id
    items = await in_database(lambda: input_of(response_id, owner_id))
    return json_response(page_of_items(items, query))


async def cancel_response(call: Call, response_id: str) -> HttpResponseBase:
    """Cancel a background response; one that has ended is returned unchanged."""
    owner_id = call.owner_id
    body = await in_database(
        lambda: response_body(cancel_background_response(response_id=response_id, owner_id=owner_id))
    )
    return json_response(body)


def read_number(text: str, name: str, *, least: int, most: int) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else least - 1
    if not least <= number <= most:
        raise invalid(f"`{name}` must be an integer from {least} to {most}, got `{quote(text)}`.", param=name)
    return number


def read_flag(text: str, name: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise invalid(f"`{name}` must be true or false, got `{quote(text)}`.", param=name)
    return text.lower() == "true"


def _read(response_id: str, owner_id: int | None) -> tuple[StoredResponse, ResponseBody]:
    row, body = read_response(response_id, owner_id)
    if not row.is_open:
        return row, body
    end_if_lost(response_id)
    return read_response(response_id, owner_id)


PROMPT = (
    "Summarise the conversation below for the assistant, who will go on with it and sees only the user's messages and "
    "your summary. Keep what was asked, what was decided, names, numbers and what is still open. Answer with the "
    "summary alone.\n\n"
)


async def compact_response(call: Call) -> HttpResponseBase:
    """Summarise a conversation. Raises MillmError 400 if it does not fit the model's context."""
    request = call.read(CompactionRequest)
    context = await read_context(call, request)
    if not context.items:
        message = "`input` or `previous_response_id` is required."
        raise invalid(message, param="input", code="missing_required_parameter")
    chat = chat_of(request, context.items)
    with renaming(lambda text: text.replace("max_tokens", "input").replace("messages", "input")):
        target = await resolve_target(call, chat)
        plan, answers = await plan_chat(chat, target)
    generation = await Generation.start(call, target, plan)
    chunks = ChatChunks(generation, answers, num_choices=1, has_logprobs=False, include_usage=True)
    fold = ChatFold(chunks.usage, has_logprobs=False)
    await collect(generation, chunks, fold.add)
    completion = fold.body()
    summary = compaction_item(new_id("cmp_"), completion["choices"][0]["message"]["content"] or "")
    body: CompactionBody = {
        "id": call.answer_id("resp_"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*(item for item in context.items if item.get("role") == "user"), summary],
        "usage": usage_body(generation.usage, completion["usage"]["completion_tokens_details"]["reasoning_tokens"]),
    }
    return json_response(body)


def chat_of(request: CompactionRequest, items: list[Item]) -> ChatRequest:
    """Return the conversation as one message, which every chat template accepts."""
    lines = [f"instructions: {request.instructions}"] if request.instructions else []
    lines += [f"{item.get('role') or item['type'].replace('_', ' ')}: {item_text(item)}" for item in items]
    steering: dict[str, Any] = request.model_dump(include=set(SteeredSchema.model_fields), exclude_unset=True)
    return ChatRequest.parse({**steering, "messages": [{"role": "user", "content": PROMPT + "\n".join(lines)}]})


async def count_input_tokens(call: Call) -> HttpResponseBase:
    """Count the tokens of the prompt that a response would have; one that is too long is refused.

    Without a model the default one is used; without an input, an empty user message.
    """
    request = call.read(TokenCountRequest)
    if not request.model:
        request = request.model_copy(update={"model": default_model(get_backend().registry()).name})
    context = await read_context(call, request)
    if not context.items:
        context = Context((), [user_message("")])
    remote = RemoteTools.of(request)
    await remote.prepare(call, context.items)
    planned = await plan_response(call, request, context, remote)
    (prompt,) = planned.plan.prompts
    call.add_usage(Usage(prompt_tokens=len(prompt)))
    body: InputTokensBody = {"object": "response.input_tokens", "input_tokens": len(prompt)}
    return json_response(body)
