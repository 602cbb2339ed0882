"""The events of an answer in the order in which the model writes it, and the two writers that make them.

:class:`ToolCallWriter` numbers tool calls, :class:`ContentWriter` passes on the content between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inference.text.dialects.argument_form import ArgumentForms
from inference.text.dialects.text_buffer import Parser, TextBuffer


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers; never part of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins; ``index`` counts the answer's calls from 0, ``id`` and ``name`` come here and nowhere else."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments: together JSON, or, where the model wrote none, what it wrote."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is complete, or the text has ended within it."""

    index: int


AnswerEvent = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArguments | ToolCallEnd


NewId = Callable[[], str]


class ToolCallWriter:
    """Makes the events of one answer's calls. At most one call is open at a time.

    ``names`` are those of the tools on offer, for notations that only a name tells from content; ``forms`` tells of
    their arguments, for those that write strings without quotes.
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
    """Blanks are held until it is known what follows them: more content, which they belong to, or a call or the end
    after one, where they mean nothing.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_after_call = False

    def until(self, buffer: TextBuffer, marks: Sequence[str]) -> Parser[ContentDelta, str | None]:
        """Content up to the earliest of ``marks``, which is taken and returned; None at the end of the text."""
        reading = buffer.until(marks)
        while True:
            try:
                text = next(reading)
            except StopIteration as end:
                mark: str | None = end.value
                break
            if text is None:
                yield None
            else:
                yield from self.say(text)
        if mark is None and self._held and not self._is_after_call:
            yield ContentDelta(self._held)
        self._held = ""
        self._is_after_call = mark is not None
        return mark

    def say(self, text: str) -> Parser[ContentDelta, None]:
        self._held += text.lstrip() if self._is_after_call else text
        certain = len(self._held.rstrip())
        if certain:
            yield ContentDelta(self._held[:certain])
            self._held = self._held[certain:]
            self._is_after_call = False
