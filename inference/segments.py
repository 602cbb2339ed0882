"""The parts of what a sequence writes, told apart by the marks between them: a small state machine as data.

Reasoning, answer, calls: the engine knows no more of them than that texts lead from one to the other. No Django here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Part = Literal["thinking", "answer", "call"]
PARTS: tuple[Part, ...] = get_args(Part)
ALL_PARTS: frozenset[Part] = frozenset(PARTS)


@dataclass(frozen=True, slots=True)
class Turn:
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
class PartState:
    part: Part
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class PartRules:
    """A sequence begins to write in the state with the number ``first``. By default all is its answer."""

    states: tuple[PartState, ...] = (PartState("answer"),)
    first: int = 0


PLAIN = PartRules()
