"""Segments of a generated text (thinking, answer, tool call) and the rules that separate them: a state machine as data.

The engine only knows that certain marks lead from one segment to another. No Django here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Segment = Literal["thinking", "answer", "call"]
SEGMENTS: tuple[Segment, ...] = get_args(Segment)
ALL_SEGMENTS: frozenset[Segment] = frozenset(SEGMENTS)


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of state: ``mark`` in the text leads to the state with the number ``to``.

    If the mark ``opens`` the new state, the token that completes it belongs to that state, otherwise to the old one.
    ``at_start``: the mark counts only at the start of the state, after optional whitespace. No mark of a state is a
    prefix of another one.
    """

    mark: str
    to: int
    opens: bool = True
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class SegmentState:
    segment: Segment
    transitions: tuple[Transition, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentRules:
    """The states and the number of the ``first`` one. By default the whole text is the answer."""

    states: tuple[SegmentState, ...] = (SegmentState("answer"),)
    first: int = 0


ANSWER_ONLY = SegmentRules()
