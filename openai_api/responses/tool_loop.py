"""The generations of one response, and its events. Each call that this server runs is followed by a generation."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

from django.db import InterfaceError, OperationalError

from core.errors import MillmError
from inference.client import Event as EngineEvent
from inference.client import SteeringReceipt, Usage
from openai_api.database import in_database
from openai_api.endpoints.chat import plan_chat
from openai_api.generation.answer import AnswerPlan
from openai_api.generation.run import Generation
from openai_api.generation.stats import steering_body, total_outcome
from openai_api.generation.target import Target
from openai_api.http.call import Call
from openai_api.http.errors import unavailable
from openai_api.request_log.entry import Outcome
from openai_api.responses.chat_form import ChatBody, messages_of
from openai_api.responses.event_writer import EventWriter
from openai_api.responses.file_search import FileSearch, Results
from openai_api.responses.mcp import Result, run_call
from openai_api.responses.output import OpenMcpCall, OpenTool
from openai_api.responses.schemas.bodies import Event, Item
from openai_api.responses.store import Turn, keep_turn
from openai_api.schemas.bodies import MillmBody
from openai_api.schemas.chat import ChatRequest

MAX_CALLS = 8  # per response without ``max_tool_calls``
NONE_LEFT = "The maximum number of tool calls of this response is reached."


class ToolLoop:
    """A loop of generations, read like one generation.

    ``body`` is the chat of the first one. ``before_call`` is awaited before each call of a remote tool.
    """

    def __init__(
        self,
        first: Generation,
        body: ChatBody,
        search: FileSearch | None = None,
        *,
        max_calls: int | None = None,
        before_call: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.call: Call = first.call
        self.target: Target = first.target
        self.search = search
        self.num_left = max_calls or MAX_CALLS
        self._before_call = before_call
        self._body = body
        self._generation = first
        self._before: list[Generation] = []
        self._outcomes: list[Outcome] = []  # of the generations that have ended
        self._changing = threading.RLock()
        self._is_closed = False
        self.is_complete = False  # no generation follows

    async def peek(self) -> None:
        await self._generation.peek()

    async def next_event(self, patience_s: float) -> EngineEvent | None:
        return await self._generation.next_event(patience_s)

    @property
    def is_generation_complete(self) -> bool:
        return self._generation.is_complete

    @property
    def usage(self) -> Usage:
        return sum((one.stats.usage for one in (*self._before, self._generation)), Usage())

    @property
    def millm(self) -> MillmBody | None:
        last = self._generation.millm
        if last is None:
            return None
        return {**last, "steering": steering_body(self._receipts)}

    @property
    def _receipts(self) -> list[SteeringReceipt]:
        return [receipt for one in (*self._before, self._generation) for receipt in one.stats.receipts]

    async def find(self, queries: list[str]) -> Results:
        assert self.search is not None, "nobody else calls it"
        self.num_left -= 1
        return await self.search.run(self.call, queries) if self.num_left >= 0 else []

    async def run(self, call: OpenMcpCall) -> Result:
        self.num_left -= 1
        if self.num_left < 0:
            return Result.failed(NONE_LEFT)
        if self._before_call is not None:
            await self._before_call()
        return await run_call(self.call, call.tool, call.arguments)

    async def go_on(self, items: Sequence[Item], num_results: int) -> AnswerPlan:
        """Start another generation after ``items``; results are numbered after ``num_results``. Raises MillmError."""
        messages = [*self._body["messages"], *messages_of(None, items, num_results=num_results)]
        self._body = {**self._body, "messages": messages, "tool_choice": "auto" if self.num_left > 0 else "none"}
        plan, answers = await plan_chat(ChatRequest.parse(self._body), self.target)
        self._check_open()
        following = await Generation.start(self.call, self.target, plan)
        with self._changing:
            if self._is_closed:
                following.cancel()
            self._check_open()
            self._end_round()
            self._before.append(self._generation)
            self._generation = following
        return answers

    def _check_open(self) -> None:
        if self._is_closed:
            raise unavailable("The client disconnected.", code="engine_unavailable")

    def close(self) -> None:
        """Close the loop. May be called at any time, from any thread, more than once."""
        with self._changing:
            if not self._is_closed:
                self._is_closed = True
                self._end_round()
                completion = "".join(one.completion for one in self._outcomes)
                self.call.outcome = total_outcome(self._outcomes, self._receipts, completion=completion)

    def _end_round(self) -> None:
        self._generation.close()
        self._outcomes.append(self._generation.outcome)


logger = logging.getLogger(__name__)


class ResponseRun:
    """A response whose client waits for it. The caller closes the generation."""

    def __init__(self, generation: ToolLoop, writer: EventWriter, own_input: Sequence[Item]) -> None:
        self.generation = generation
        self.writer = writer
        self._input = own_input

    async def events(self, patience_s: float) -> AsyncGenerator[Event | None, None]:
        """Yield all events, and None after each ``patience_s`` without one; the last one follows once the response is
        stored.
        """
        for first in self.writer.start():
            yield first
        async for event in generated(self.generation, self.writer, patience_s):
            yield event
        await self._keep()
        yield self.writer.ended()

    async def failed(self, error: MillmError) -> Event:
        """Return the last event of a response that failed."""
        self.writer.fail(error, self.generation)
        await self._keep()
        return self.writer.ended()

    async def _keep(self) -> None:
        """Store the response. If the database is down it is sent anyway, marked as not stored."""
        call, body = self.generation.call, self.writer.body
        if not body["store"] and body["conversation"] is None:
            return
        turn = Turn(body, self._input, call.key.owner_id if call.key else None)
        try:
            await in_database(lambda: keep_turn(turn=turn))
        except (OperationalError, InterfaceError, MillmError) as error:
            logger.warning("Response %s could not be stored: %s", body["id"], error)
            body["store"] = False


async def generated(loop: ToolLoop, writer: EventWriter, patience_s: float) -> AsyncGenerator[Event | None, None]:
    """Yield the events of the output, and None after each ``patience_s`` without one, running calls on the way."""
    while True:
        while not loop.is_generation_complete:
            event = await loop.next_event(patience_s)
            if event is None:
                yield None
            else:
                for written in writer.on_event(event, loop):
                    yield written
        if not writer.pending:
            loop.is_complete = True
            return
        found = list[Item]()
        num_known = len(writer.searching.sources)
        for call in writer.pending:
            item, events = await _run(call, loop, writer)
            found.append(item)
            for written in events:
                yield written
        if writer.waits_for_client:
            loop.is_complete = True
            for written in writer.complete(loop):
                yield written
            return
        writer.read(await loop.go_on(found, num_known), loop.target.model.text)


async def _run(call: OpenTool, loop: ToolLoop, writer: EventWriter) -> tuple[Item, Iterator[Event]]:
    """Run a call, and return its item, as the model reads it, and its events. Raises MillmError."""
    if isinstance(call, OpenMcpCall):
        result = await loop.run(call)
        return call.ended(result), writer.ran(call, result)
    results = await loop.find(call.queries)
    writer.searching.sources.extend(results)
    return call.item("completed", results), writer.found(call, results)
