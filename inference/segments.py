"""The parts of what a sequence writes, told apart by the marks between them: a small state machine as data.

Reasoning, answer, calls: the engine knows no more of them than that texts lead from one to the other. No Django here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Segment = Literal["thinking", "answer", "call"]
SEGMENTS: tuple[Segment, ...] = get_args(Segment)
ALL_SEGMENTS: frozenset[Segment] = frozenset(SEGMENTS)


@dataclass(frozen=True, slots=True)
class Transition:
    """Where ``mark`` is written, the state with the number ``to`` begins.

    The token that completes a mark which ``opens`` belongs to the new state already, else to the one that ends.
    ``at_start``: the mark counts only where nothing but blanks stands between the state's beginning and it. No mark of
    a state is the beginning of another one.
    """

    mark: str
    to: int
    opens: bool = True
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class SegmentState:
    part: Segment
    transitions: tuple[Transition, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentRules:
    """A sequence begins to write in the state with the number ``first``. By default all is its answer."""

    states: tuple[SegmentState, ...] = (SegmentState("answer"),)
    first: int = 0


ANSWER_ONLY = SegmentRules()
