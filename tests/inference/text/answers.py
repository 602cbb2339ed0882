"""Whole answers out of events, for tests of the dialects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import strategies as st

from inference.text.dialects.answer_reader import AnswerReader
from inference.text.dialects.events import (
    AnswerEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)


@dataclass
class ReadCall:
    id: str
    name: str
    arguments: str = ""
    is_ended: bool = False


@dataclass
class Answer:
    """Checks the order of events while it takes them."""

    reasoning: str = ""
    content: str = ""
    calls: list[ReadCall] = field(default_factory=list)

    def take(self, events: Iterable[AnswerEvent]) -> None:
        for event in events:
            match event:
                case ReasoningDelta(text):
                    assert text
                    assert not self.content
                    self.reasoning += text
                case ContentDelta(text):
                    assert text
                    assert all(call.is_ended for call in self.calls)
                    self.content += text
                case ToolCallStart(index, call_id, name):
                    assert index == len(self.calls)
                    assert all(call.is_ended for call in self.calls)
                    self.calls.append(ReadCall(call_id, name))
                case ToolCallArguments(index, text):
                    assert index == len(self.calls) - 1
                    assert not self.calls[index].is_ended
                    self.calls[index].arguments += text
                case ToolCallEnd(index):
                    assert not self.calls[index].is_ended
                    self.calls[index].is_ended = True

    @property
    def named(self) -> list[tuple[str, str]]:
        return [(call.name, call.arguments) for call in self.calls]


def read_answer(pieces: Sequence[str], **options: Any) -> Answer:
    numbers = count()
    reader = AnswerReader(new_id=lambda: f"call_{next(numbers)}", **options)
    answer = Answer()
    for piece in pieces:
        answer.take(reader.feed(piece))
    answer.take(reader.finish())
    assert all(call.is_ended for call in answer.calls)
    assert len(answer.calls) == reader.num_calls
    return answer


def cuts(text: str) -> st.SearchStrategy[list[str]]:
    """The text in pieces."""
    places = st.lists(st.integers(0, len(text)), max_size=12).map(sorted)
    return places.map(lambda ends: [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)])
