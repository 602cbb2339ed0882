"""The dialect of a model: its reasoning marks, its tool call notation, and the rules for the segments of its answers.

For clients, an :class:`~inference.text.dialects.answer_reader.AnswerReader` parses the calls. The segment rules are for
the engine: they only know the positions of calls, so a call with invalid content is still a call segment.
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
    """``thinking`` None: the model has no separate reasoning. ``tools`` None: it does not know tool calls."""

    thinking: ThinkingMarks | None = None
    tools: ToolFormat | None = None


def dialect_of(template: str, *, tool_format: str = "") -> Dialect:
    """Return the dialect of a chat template. ``tool_format`` overrides the notation found in the template."""
    return Dialect(marks_in(template), TOOL_FORMATS[tool_format] if tool_format else format_in(template))


CallMode = Literal["none", "marked", "offered"]
"""Which calls an answer may contain. "marked", if it is unknown whether tools were offered: only those with a mark."""

ANSWER, THINKING, CALL, OPENING = range(4)


@lru_cache(maxsize=256)
def answer_segment_rules(dialect: Dialect, thinking: ThinkingState, calls: CallMode) -> SegmentRules:
    """Return the rules for an answer that begins inside reasoning, may begin with it, or has none."""
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
