"""One answer's text, told apart while it arrives: reasoning, then content and tool calls."""

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
    """What Mistral's templates take: nine letters and digits."""
    return secrets.token_hex(5)[:9]


NEW_IDS: Mapping[IdForm, NewId] = {"call": new_call_id, "short": new_short_id}


class AnswerReader:
    """Feed it the text as it comes, then :meth:`finish` once.

    However the text is cut into pieces, the calls are the same, and so are reasoning and content put together.
    ``thinking`` None and ``tools`` None pass everything through as content. ``is_thinking``: the prompt has begun the
    reasoning. ``max_calls`` drops what is called after so many calls.
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
        self.reasoning_end = 0  # characters of the text up to the end of the reasoning, its mark included
        self.num_calls = 0
        self._thinking = thinking
        self._tools = tools
        self._calls = ToolCallWriter(new_id or NEW_IDS[tools.ids if tools else "call"], tool_names, argument_forms)
        self._max_calls = max_calls
        self._buffer = TextBuffer()
        self._reading = self._read()

    def feed(self, text: str) -> list[AnswerEvent]:
        """What is certain with ``text``."""
        self._buffer.add(text)
        return self._go_on()

    def finish(self) -> list[AnswerEvent]:
        """The rest: nothing follows. A call that is open ends here."""
        self._buffer.end()
        return self._go_on()

    def _go_on(self) -> list[AnswerEvent]:
        found: list[AnswerEvent] = []
        for event in self._reading:
            if event is None:
                break
            if self._is_wanted(event):
                found.append(event)
        return found

    def _is_wanted(self, event: AnswerEvent) -> bool:
        if not isinstance(event, _CALL_EVENTS):
            return True
        is_wanted = self._max_calls is None or event.index < self._max_calls
        self.num_calls += is_wanted and isinstance(event, ToolCallStart)
        return is_wanted

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
