"""The events of an answer, in the order of its text, and the two classes that create them.

:class:`ToolCallWriter` numbers the tool calls; :class:`ContentWriter` handles the content between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inference.text.dialects.argument_form import ArgumentForms
from inference.text.dialects.text_buffer import Parser, TextBuffer


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of reasoning. Not part of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """A piece of content."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. ``index`` counts the answer's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of a call's arguments. Together they are JSON, or what the model wrote instead."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is complete, or the text has ended inside it."""

    index: int


AnswerEvent = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArguments | ToolCallEnd


NewId = Callable[[], str]


class ToolCallWriter:
    """Creates the events of an answer's calls. At most one call is open at a time.

    ``names``: the offered tools, for notations in which only a name distinguishes calls from content. ``forms``: the
    forms of their arguments, for notations that write strings without quotes.
    """

    def __init__(
        self,
        new_id: NewId,
        names: frozenset[str] = frozenset(),
        forms: Mapping[str, ArgumentForms] | None = None,
    ) -> None:
        self.names = names
        self.forms: Mapping[str, ArgumentForms] = forms or {}
        self._new_id = new_id
        self._count = 0
        self.is_open = False

    def start(self, name: str) -> ToolCallStart:
        assert not self.is_open, "a call ends before the next one begins"
        self.is_open = True
        self._count += 1
        return ToolCallStart(self._count - 1, self._new_id(), name)

    def arguments(self, text: str) -> ToolCallArguments:
        return ToolCallArguments(self._count - 1, text)

    def end(self) -> ToolCallEnd:
        self.is_open = False
        return ToolCallEnd(self._count - 1)


class ContentWriter:
    """Creates the events of content. Holds whitespace until its meaning is known: it belongs to content that follows,
    and is dropped before and after calls.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_after_call = False

    def until(self, buffer: TextBuffer, marks: Sequence[str]) -> Parser[ContentDelta, str | None]:
        """Yield content up to the earliest of ``marks``. Consumes and returns the mark; None at the end of the text."""
        parser = buffer.until(marks)
        while True:
            try:
                text = next(parser)
            except StopIteration as end:
                mark: str | None = end.value
                break
            if text is None:
                yield None
            else:
                yield from self.write(text)
        if mark is None and self._held and not self._is_after_call:
            yield ContentDelta(self._held)
        self._held = ""
        self._is_after_call = mark is not None
        return mark

    def write(self, text: str) -> Parser[ContentDelta, None]:
        self._held += text.lstrip() if self._is_after_call else text
        certain = len(self._held.rstrip())
        if certain:
            yield ContentDelta(self._held[:certain])
            self._held = self._held[certain:]
            self._is_after_call = False
