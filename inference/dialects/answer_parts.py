"""A dialect's marks as rules by which the engine tells the parts of an answer apart while it is written.

What a client gets is told apart by an :class:`~inference.dialects.answer_reader.AnswerReader`, which reads calls. These
rules know where they stand, and no more: a call that turns out to be broken was one for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from inference.dialects.answer_grammar import Thinking
from inference.dialects.dialect import Dialect
from inference.dialects.tool_format import ToolFormat
from inference.parts import PartRules, PartState, Turn

Calls = Literal["none", "marked", "offered"]
"""Whether there may be any. Where nobody knows whether tools were on offer, those count that a mark begins."""

ANSWER, THINKING, CALL, OPENING = range(4)


@lru_cache(maxsize=256)
def answer_parts(dialect: Dialect, thinking: Thinking, calls: Calls) -> PartRules:
    """The rules for an answer that begins inside of reasoning, may begin with it, or has none."""
    tools = dialect.tools if calls != "none" else None
    begins = tuple(_begins(tools, calls)) if tools else ()
    ends = tuple(Turn(mark, ANSWER, opens=False) for mark in tools.span.ends) if tools else ()
    states = [PartState("answer", begins), PartState("thinking"), PartState("call", ends)]
    if dialect.thinking is None or thinking == "none":
        return PartRules(tuple(states), ANSWER)
    states[THINKING] = PartState("thinking", (Turn(dialect.thinking.end, ANSWER, opens=False),))
    states.append(PartState("answer", (Turn(dialect.thinking.start, THINKING, at_start=True), *begins)))
    return PartRules(tuple(states), THINKING if thinking == "begun" else OPENING)


def _begins(tools: ToolFormat, calls: Calls) -> Iterator[Turn]:
    for mark in tools.span.starts:
        yield Turn(mark, CALL)
    for mark in tools.span.openers:
        if calls == "offered" or mark in tools.marks:
            yield Turn(mark, CALL, at_start=True)
