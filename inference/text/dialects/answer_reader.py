"""Separate the text of an answer into reasoning, content and tool calls while it arrives."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from inference.text.dialects.argument_form import ArgumentForms
from inference.text.dialects.events import (
    AnswerEvent,
    ContentDelta,
    NewId,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolCallWriter,
)
from inference.text.dialects.text_buffer import Parser, TextBuffer
from inference.text.dialects.thinking import ThinkingMarks, begins_with, parse_reasoning
from inference.text.dialects.tool_format import IdForm, ToolFormat

_CALL_EVENTS = ToolCallStart | ToolCallArguments | ToolCallEnd


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def new_short_id() -> str:
    """Return an id that Mistral's templates accept: nine letters and digits."""
    return secrets.token_hex(5)[:9]


NEW_IDS: Mapping[IdForm, NewId] = {"call": new_call_id, "short": new_short_id}


class AnswerReader:
    """Reads one answer. Call :meth:`feed` with each piece of text, then :meth:`finish` once.

    The result does not depend on how the text is split. With ``thinking`` None and ``tools`` None all text is content.
    ``is_thinking``: the prompt has opened the reasoning. Calls beyond ``max_calls`` are dropped.
    """

    def __init__(
        self,
        *,
        thinking: ThinkingMarks | None = None,
        is_thinking: bool = False,
        tools: ToolFormat | None = None,
        tool_names: frozenset[str] = frozenset(),
        argument_forms: Mapping[str, ArgumentForms] | None = None,
        max_calls: int | None = None,
        new_id: NewId | None = None,
    ) -> None:
        self.is_reasoning = is_thinking
        self.reasoning_end = 0  # characters up to the end of the reasoning, including its mark
        self.num_calls = 0
        self._thinking = thinking
        self._tools = tools
        self._calls = ToolCallWriter(new_id or NEW_IDS[tools.ids if tools else "call"], tool_names, argument_forms)
        self._max_calls = max_calls
        self._buffer = TextBuffer()
        self._parser = self._read()

    def feed(self, text: str) -> list[AnswerEvent]:
        """Add ``text`` and return the events that are certain now."""
        self._buffer.add(text)
        return self._advance()

    def finish(self) -> list[AnswerEvent]:
        """Return the remaining events. An open call ends here."""
        self._buffer.end()
        return self._advance()

    def _advance(self) -> list[AnswerEvent]:
        found: list[AnswerEvent] = []
        for event in self._parser:
            if event is None:
                break
            if self._is_included(event):
                found.append(event)
        return found

    def _is_included(self, event: AnswerEvent) -> bool:
        if not isinstance(event, _CALL_EVENTS):
            return True
        is_allowed = self._max_calls is None or event.index < self._max_calls
        self.num_calls += is_allowed and isinstance(event, ToolCallStart)
        return is_allowed

    def _read(self) -> Parser[AnswerEvent, None]:
        if self._thinking is not None:
            yield from self._read_thinking(self._thinking)
        if self._tools is not None:
            yield from self._tools.read(self._buffer, self._calls)
        else:
            yield from _plain(self._buffer)

    def _read_thinking(self, marks: ThinkingMarks) -> Parser[AnswerEvent, None]:
        has_begun = yield from begins_with(self._buffer, marks.start)
        if not (has_begun or self.is_reasoning):
            return
        self.is_reasoning = True
        if (yield from parse_reasoning(self._buffer, marks.end)) is None:
            return  # the text has ended
        self.is_reasoning = False
        self.reasoning_end = self._buffer.position
        yield from self._buffer.skip_space()


def _plain(buffer: TextBuffer) -> Parser[ContentDelta, None]:
    while (yield from buffer.more()):
        yield ContentDelta(buffer.take(len(buffer.text)))
