"""Which segment (thinking, answer or tool call) each generated token belongs to.

:class:`SegmentMachine` follows a text through :class:`~inference.segments.SegmentRules`, token by token, on bytes. A
step depends only on the tokens so far, never on later ones, so drafted tokens have segments too, and a sequence that
is recomputed gets the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from inference.segments import Segment, SegmentRules, SegmentState

SegmentPlace = tuple[Segment, int]  # a token's segment, and its index among that segment's tokens


class TextPosition(NamedTuple):
    """The state after a token. ``tail``: the last bytes in this state, which may contain the start of a mark.

    ``is_fresh``: only whitespace, or the start of a mark, has followed so far.
    """

    state: int
    tail: bytes = b""
    is_fresh: bool = True


class _Transition(NamedTuple):
    mark: bytes
    to: int
    opens: bool


@dataclass(frozen=True, slots=True)
class _State:
    segment: Segment
    transitions: tuple[_Transition, ...]
    first_transitions: tuple[_Transition, ...]  # only after optional whitespace
    num_kept: int  # bytes that may begin a mark

    @classmethod
    def of(cls, state: SegmentState) -> _State:
        transitions = [
            (transition.at_start, _Transition(transition.mark.encode(), transition.to, transition.opens))
            for transition in state.transitions
        ]
        anywhere = tuple(transition for at_start, transition in transitions if not at_start)
        first = tuple(transition for at_start, transition in transitions if at_start)
        return cls(
            state.segment, anywhere, first, max((len(transition.mark) for transition in anywhere), default=1) - 1
        )

    def next_transition(self, tail: bytes, *, is_fresh: bool) -> tuple[int, _Transition] | None:
        """Return the transition whose mark comes first, and the start of the mark."""
        found = [(place, transition) for transition in self.transitions if (place := tail.find(transition.mark)) >= 0]
        if is_fresh and self.first_transitions:
            text = tail.lstrip()
            found += [
                (len(tail) - len(text), transition)
                for transition in self.first_transitions
                if text.startswith(transition.mark)
            ]
        return min(found, key=lambda each: each[0]) if found else None

    def rest(self, tail: bytes, *, is_fresh: bool) -> tuple[bytes, bool]:
        """Return the part of the tail that may start a mark, and whether the text may still begin with a mark."""
        if is_fresh:
            text = tail.lstrip()
            if not text or any(transition.mark.startswith(text) for transition in self.first_transitions):
                return text, True
        return (tail[-self.num_kept :] if self.num_kept else b""), False


class SegmentMachine:
    """Applies segment rules. Stateless."""

    def __init__(self, rules: SegmentRules) -> None:
        self._states = tuple(_State.of(state) for state in rules.states)

    def step(self, position: TextPosition, text: bytes) -> tuple[TextPosition, Segment]:
        """Return the position after a token with that text, and the token's segment."""
        number, tail, is_fresh = position
        state = self._states[number]
        segment, tail = state.segment, tail + text
        while (found := state.next_transition(tail, is_fresh=is_fresh)) is not None:
            place, transition = found
            number, tail, is_fresh = transition.to, tail[place + len(transition.mark) :], True
            state = self._states[number]
            if transition.opens:
                segment = state.segment
        tail, is_fresh = state.rest(tail, is_fresh=is_fresh)
        return TextPosition(number, tail, is_fresh), segment


@lru_cache(maxsize=64)
def segment_machine(rules: SegmentRules) -> SegmentMachine:
    """Return a cached machine: the requests of a model share a few rules."""
    return SegmentMachine(rules)


class SequenceSegments:
    """The segments of one sequence. ``bytes_of`` returns a token's bytes, possibly part of a character."""

    def __init__(self, rules: SegmentRules, bytes_of: Callable[[int], bytes]) -> None:
        self._machine = segment_machine(rules)
        self._bytes_of = bytes_of
        self._places: list[SegmentPlace] = []
        self._position = TextPosition(rules.first)
        self._counts: Counter[Segment] = Counter()

    @property
    def num_known(self) -> int:
        return len(self._places)

    def take(self, token_ids: Sequence[int]) -> None:
        """Add generated tokens."""
        self._position = self._follow(token_ids, self._position, self._counts, self._places)

    def places(self, token_ids: Sequence[int], first: int) -> list[SegmentPlace]:
        """Return the segments of generated tokens from ``first`` on. Tokens after the added ones are drafts."""
        found = self._places[first : first + len(token_ids)]
        if len(found) < len(token_ids):
            self._follow(token_ids[len(found) :], self._position, self._counts.copy(), found)
        return found

    def _follow(
        self, token_ids: Sequence[int], position: TextPosition, counts: Counter[Segment], places: list[SegmentPlace]
    ) -> TextPosition:
        for token in token_ids:
            position, segment = self._machine.step(position, self._bytes_of(token))
            places.append((segment, counts[segment]))
            counts[segment] += 1
        return position
