"""How one model writes: its marks of reasoning, its notation of calls, and the rules for the segments of its answer.

What a client gets is told apart by an :class:`~inference.text.dialects.answer_reader.AnswerReader`, which reads calls.
The rules are for the engine: they know where calls stand, and no more, so that a call which turns out to be broken was
one for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from inference.segments import SegmentRules, SegmentState, Transition
from inference.text.dialects.answer_grammar import ThinkingState
from inference.text.dialects.thinking import ThinkingMarks, marks_in
from inference.text.dialects.tool_format import ToolFormat
from inference.text.dialects.tool_formats import TOOL_FORMATS, format_in


@dataclass(frozen=True, slots=True)
class Dialect:
    """``thinking`` None: the model does not reason apart from its answer. ``tools`` None: it was not taught to call."""

    thinking: ThinkingMarks | None = None
    tools: ToolFormat | None = None


def dialect_of(template: str, *, tool_format: str = "") -> Dialect:
    """Of a chat template; ``tool_format`` is an administrator's choice in place of what the template tells."""
    return Dialect(marks_in(template), TOOL_FORMATS[tool_format] if tool_format else format_in(template))


CallMode = Literal["none", "marked", "offered"]
"""Whether there may be any. Where nobody knows whether tools were on offer, those count that a mark begins."""

ANSWER, THINKING, CALL, OPENING = range(4)


@lru_cache(maxsize=256)
def answer_segment_rules(dialect: Dialect, thinking: ThinkingState, calls: CallMode) -> SegmentRules:
    """The rules for an answer that begins inside of reasoning, may begin with it, or has none."""
    tools = dialect.tools if calls != "none" else None
    begins = tuple(_begins(tools, calls)) if tools else ()
    ends = tuple(Transition(mark, ANSWER, opens=False) for mark in tools.span.ends) if tools else ()
    states = [SegmentState("answer", begins), SegmentState("thinking"), SegmentState("call", ends)]
    if dialect.thinking is None or thinking == "none":
        return SegmentRules(tuple(states), ANSWER)
    states[THINKING] = SegmentState("thinking", (Transition(dialect.thinking.end, ANSWER, opens=False),))
    states.append(SegmentState("answer", (Transition(dialect.thinking.start, THINKING, at_start=True), *begins)))
    return SegmentRules(tuple(states), THINKING if thinking == "begun" else OPENING)


def _begins(tools: ToolFormat, calls: CallMode) -> Iterator[Transition]:
    for mark in tools.span.starts:
        yield Transition(mark, CALL)
    for mark in tools.span.openers:
        if calls == "offered" or mark in tools.marks:
            yield Transition(mark, CALL, at_start=True)
