"""Convert an answer to Ollama's lines of JSON, and fold these into one body."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pydantic_core
from django.http.response import HttpResponseBase

from inference.client import Event, FinishedEvent, Timings, TokensEvent
from inference.text.dialects.events import (
    AnswerEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_api.endpoints.anthropic_events import read_input
from openai_api.generation.answer import AnswerPlan
from openai_api.generation.reply import collect, stream
from openai_api.generation.run import Generation
from openai_api.generation.token_text import top_logprob
from openai_api.http.endpoint import json_response
from openai_api.http.errors import ollama_error
from openai_api.http.sse import Framing
from openai_api.ollama.schemas import OllamaFunctionBody, OllamaLogprobBody, OllamaToolCallBody

NDJSON = "application/x-ndjson"
Line = dict[str, Any]  # an OllamaChatBody or an OllamaGenerateBody
Place = Callable[[dict[str, Any]], Line]  # puts the parts of an answer where the endpoint has them


def in_message(parts: dict[str, Any]) -> Line:
    """Return the parts of a chat's answer."""
    return {"message": {"role": "assistant", "content": "", **parts}}


def in_response(parts: dict[str, Any]) -> Line:
    """Return the parts of a prompt's answer."""
    rest = {name: value for name, value in parts.items() if name != "content"}
    return {"response": parts.get("content", ""), **rest}


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


class Stopwatch:
    """Measures a request: all of it, and the time until its model was ready."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self._loaded_s = 0.0

    def note_loaded(self) -> None:
        self._loaded_s = time.monotonic() - self._began_at

    def durations(self) -> dict[str, int]:
        return {
            "total_duration": nanoseconds(time.monotonic() - self._began_at),
            "load_duration": nanoseconds(self._loaded_s),
        }


class AnswerLines:
    """Makes the lines of one generation. ``answers`` is None for a raw prompt, whose text is not parsed.

    A tool call is one line: Ollama's calls have their arguments as an object.
    """

    def __init__(
        self,
        generation: Generation,
        answers: AnswerPlan | None,
        *,
        name: str,
        place: Place,
        watch: Stopwatch,
        context: Callable[[str], list[int]] | None = None,
    ) -> None:
        """Prepare the lines. ``name`` is the model's as it was sent; ``context`` encodes the conversation."""
        self._generation = generation
        self._text = generation.target.model.text
        self._reader = answers.reader() if answers is not None else None
        self._name = name
        self._place = place
        self._watch = watch
        self._context = context
        self._contents: list[str] = []
        self._call: OllamaFunctionBody | None = None
        self._call_id = ""
        self._arguments: list[str] = []
        self._end: FinishedEvent | None = None

    def line(self, parts: dict[str, Any], **more: Any) -> Line:
        return {"model": self._name, "created_at": now(), **self._place(parts), "done": False, **more}

    def start(self) -> Iterator[Line]:
        return iter(())

    def on_event(self, event: Event) -> Iterator[Line]:
        if isinstance(event, TokensEvent):
            yield from self._tokens(event)
        elif isinstance(event, FinishedEvent):
            self._end = event
            for parts in self._parts(self._reader.finish() if self._reader else ()):
                yield self.line(parts)

    def finish(self) -> Iterator[Line]:
        assert self._end is not None, "the answer has ended"
        usage, timings = self._generation.stats.usage, self._end.timings
        last = self.line(
            {},
            done_reason="length" if self._end.reason == "length" else "stop",
            **self._watch.durations(),
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_duration=nanoseconds(_first_token_s(timings) - timings.queue_s),
            eval_count=usage.completion_tokens,
            eval_duration=nanoseconds(timings.total_s - _first_token_s(timings)),
        )
        last["done"] = True
        if self._context is not None:
            last["context"] = self._context("".join(self._contents))
        if (millm := self._generation.millm) is not None:
            last["millm"] = millm
        yield last

    def _tokens(self, event: TokensEvent) -> Iterator[Line]:
        """Return log-probabilities with the first line that their tokens complete, or in a line of their own."""
        found = list(self._parts(self._reader.feed(event.text) if self._reader else [ContentDelta(event.text)]))
        more: dict[str, Any] = (
            {"logprobs": [self._logprob(token) for token in event.logprobs]} if event.logprobs else {}
        )
        for parts in found or ([{}] if more else []):
            yield self.line(parts, **more)
            more = {}

    def _parts(self, events: Iterable[AnswerEvent]) -> Iterator[dict[str, Any]]:
        for event in events:
            match event:
                case ContentDelta(text) if text:
                    self._contents.append(text)
                    yield {"content": text}
                case ReasoningDelta(text):
                    yield {"thinking": text}
                case ToolCallStart(index, call_id, name):
                    self._call, self._call_id = {"index": index, "name": name, "arguments": {}}, call_id
                case ToolCallArguments(_, text):
                    self._arguments.append(text)
                case ToolCallEnd():
                    yield {"tool_calls": [self._ended_call()]}
                case _:
                    pass

    def _ended_call(self) -> OllamaToolCallBody:
        assert self._call is not None, "a call begins before it ends"
        arguments, self._arguments = "".join(self._arguments), []
        return {"id": self._call_id, "function": {**self._call, "arguments": read_input(arguments)}}

    def _logprob(self, token: Any) -> OllamaLogprobBody:
        found = cast("OllamaLogprobBody", top_logprob(self._text, token.token_id, token.logprob))
        if token.top:
            found["top_logprobs"] = [
                cast("OllamaLogprobBody", top_logprob(self._text, token_id, value)) for token_id, value in token.top
            ]
        return found


def _first_token_s(timings: Timings) -> float:
    """Return the time of the first token; without one, of the end."""
    return timings.total_s if timings.first_token_s is None else timings.first_token_s


class LineFold:
    """Fold all lines of a stream into one body."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._texts: dict[str, list[str]] = {"content": [], "thinking": []}
        self._calls: list[OllamaToolCallBody] = []
        self._logprobs: list[OllamaLogprobBody] = []
        self._last: Line = {}

    def add(self, line: Line) -> None:
        self._last = line
        parts = line.get("message", line)
        self._texts["content"].append(parts.get("content", parts.get("response", "")))
        self._texts["thinking"].append(parts.get("thinking", ""))
        self._calls += parts.get("tool_calls", ())
        self._logprobs += line.get("logprobs", ())

    def body(self) -> Line:
        parts: dict[str, Any] = {name: "".join(texts) for name, texts in self._texts.items()}
        if not parts["thinking"]:
            del parts["thinking"]
        if self._calls:
            parts["tool_calls"] = self._calls
        body = {**self._last, **self._place(parts)}
        return {**body, "logprobs": self._logprobs} if self._logprobs else body


async def respond(generation: Generation, lines: AnswerLines, place: Place, *, streams: bool) -> HttpResponseBase:
    """Answer with a stream of lines or with one body. Raises MillmError while the HTTP status can still be set."""
    if streams:
        # Lines have no comments: while the model is silent, an empty piece of the answer keeps the connection open.
        framing = Framing(to_line, ping=to_line(lines.line({})), done=b"", error=ollama_error, media_type=NDJSON)
        return await stream(generation, lines, framing=framing)
    fold = LineFold(place)
    await collect(generation, lines, fold.add)
    return json_response(fold.body())


def to_line(body: object) -> bytes:
    return pydantic_core.to_json(body) + b"\n"


def only_line(line: Line, *, streams: bool) -> HttpResponseBase:
    """Answer with a single line, which ends the stream."""
    response = json_response(line)
    if streams:
        response.content += b"\n"
        response.headers["Content-Type"] = NDJSON
    return response
