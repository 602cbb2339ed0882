"""Write a response's events in the order that clients depend on, and keep its current state."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from core.errors import MillmError
from inference.client import Event as EngineEvent
from inference.client import FinishedEvent, TokensEvent, Usage
from inference.text.dialects.answer_reader import AnswerReader
from inference.text.dialects.events import AnswerEvent, ToolCallEnd
from inference.text.model_text import ModelText
from openai_api.generation.answer import AnswerPlan
from openai_api.generation.target import Target
from openai_api.generation.token_text import ReasoningTokens, token_logprob
from openai_api.http.sse import data_event
from openai_api.responses.file_search import Results, Searching
from openai_api.responses.mcp import RemoteTools, Result
from openai_api.responses.output import OpenMcpCall, OpenSearch, OpenTool, Output
from openai_api.responses.response_body import error_body, usage_body
from openai_api.responses.schemas.bodies import Event, ResponseBody, ResponseStatus
from openai_api.schemas.bodies import MillmBody


class Written(Protocol):
    """The source of the answer: one generation or several; see :class:`ToolLoop`."""

    @property
    def target(self) -> Target: ...

    @property
    def usage(self) -> Usage: ...

    @property
    def millm(self) -> MillmBody | None: ...


class EventWriter:
    """Numbers the events from ``first_number`` on. ``body`` is the response; its outcome is set at the end."""

    def __init__(
        self,
        body: ResponseBody,
        *,
        first_number: int = 0,
        searching: Searching | None = None,
        remote: RemoteTools | None = None,
    ) -> None:
        self.body = body
        self.searching = searching or Searching(is_on=False)
        self._reader = AnswerReader()
        self._reasoning: ReasoningTokens | None = None
        self._remote = remote or RemoteTools()
        self._output = Output(searches=self.searching.is_on, sources=self.searching.sources, remote=self._remote)
        self._num_reasoning = 0  # tokens of earlier generations
        self._next_number = first_number
        self._logprobs: list[Any] = []

    def read(self, answers: AnswerPlan, text: ModelText) -> None:
        """Prepare to parse the next answer by its plan."""
        self._num_reasoning += self._reasoning.count if self._reasoning is not None else 0
        self._reader = answers.reader()
        self._reasoning = ReasoningTokens(text)

    def start(self) -> Iterator[Event]:
        """Yield `created`, `queued` for background responses, and `in_progress`."""
        yield from self.created()
        yield from self.started()

    def created(self) -> Iterator[Event]:
        yield self._lifecycle("response.created")
        if self.body["status"] == "queued":
            yield self._lifecycle("response.queued")

    def started(self) -> Iterator[Event]:
        self.body["status"] = "in_progress"
        yield self._lifecycle("response.in_progress")
        yield from self._numbered(self._output.precede(self._remote.new_items))

    def resume(self) -> None:
        """Go on after the events of :meth:`started`, which an earlier attempt has written."""
        for _ in self._output.precede(self._remote.new_items):
            pass

    def on_event(self, event: EngineEvent, generation: Written) -> Iterator[Event]:
        if isinstance(event, TokensEvent):
            yield from self._read(event, generation)
        if isinstance(event, FinishedEvent):
            yield from self._finish(event, generation)

    def ended(self) -> Event:
        """Return the last event, once the outcome is in ``body`` and stored."""
        return self._lifecycle(f"response.{self.body['status']}")

    def fail(self, error: MillmError, generation: Written | None = None) -> None:
        self._close_body("failed")
        self.body["error"] = error_body(error)
        if generation is not None:
            self._note_use(generation)

    @property
    def pending(self) -> Sequence[OpenTool]:
        """Return the calls of this generation that this server has to run."""
        return tuple(self._output.pending)

    def found(self, search: OpenSearch, results: Results) -> Iterator[Event]:
        yield from self._numbered(self._output.found(search, results if self.searching.shows_results else None))

    def ran(self, call: OpenMcpCall, result: Result) -> Iterator[Event]:
        yield from self._numbered(self._output.ran(call, result))

    @property
    def waits_for_client(self) -> bool:
        """Return whether the model also called functions, whose outputs only the client has, or tools that the client
        has to approve.
        """
        return any(item["type"] in {"function_call", "mcp_approval_request"} for item in self._output.items)

    def complete(self, generation: Written) -> Iterator[Event]:
        """Yield the last events of the output."""
        yield from self._end("completed", generation)

    def _read(self, event: TokensEvent, generation: Written) -> Iterator[Event]:
        text = generation.target.model.text
        self._logprobs.extend(token_logprob(text, token) for token in event.logprobs)
        parts = self._reader.feed(event.text)
        if self._reasoning is not None:
            self._reasoning.note(event, self._reader)
        yield from self._take(parts)

    def _finish(self, event: FinishedEvent, generation: Written) -> Iterator[Event]:
        status: ResponseStatus = "incomplete" if event.reason == "length" else "completed"
        rest = self._reader.finish()
        if status == "incomplete":  # an open call is not complete when the text ends
            rest = [part for part in rest if not isinstance(part, ToolCallEnd)]
        yield from self._take(rest)
        if status == "completed" and (self.pending or self._output.is_calling):
            yield from self._numbered(self._output.close("completed"))
            return
        yield from self._end(status, generation)

    def _end(self, status: ResponseStatus, generation: Written) -> Iterator[Event]:
        yield from self._numbered(self._output.finish(status, self._logprobs))
        self._close_body(status)
        self.body["incomplete_details"] = {"reason": "max_output_tokens"} if status == "incomplete" else None
        self._note_use(generation)

    def _take(self, parts: Iterable[AnswerEvent]) -> Iterator[Event]:
        for part in parts:
            logprobs, self._logprobs = self._logprobs, []
            yield from self._numbered(self._output.take(part, logprobs))

    def _close_body(self, status: ResponseStatus) -> None:
        self.body["status"] = status
        self.body["completed_at"] = int(time.time()) if status == "completed" else None
        self.body["output"] = self._output.snapshot()

    def _note_use(self, generation: Written) -> None:
        self.body["usage"] = usage_body(
            generation.usage,
            self._num_reasoning + (self._reasoning.count if self._reasoning is not None else 0),
        )
        millm = generation.millm
        if millm is not None:
            self.body["millm"] = millm

    def _numbered(self, events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            yield {**event, "sequence_number": self._number()}

    def _lifecycle(self, kind: str) -> Event:
        return {"type": kind, "sequence_number": self._number(), "response": copy.copy(self.body)}

    def _number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number


def named_event(event: Event) -> bytes:
    return f"event: {event['type']}\n".encode() + data_event(event)
