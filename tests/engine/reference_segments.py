"""A simple implementation of segments, which reads each text from its start. Tests compare the engine with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inference.segments import SegmentRules, SegmentState, Transition

OPENING, THINKING, ANSWER, CALL = range(4)
BEGINS = (Transition("[[", CALL), Transition("{", CALL, at_start=True))
RULES = SegmentRules(
    (
        SegmentState("answer", (Transition("<t>", THINKING, at_start=True), *BEGINS)),
        SegmentState("thinking", (Transition("</t>", ANSWER, opens=False),)),
        SegmentState("answer", BEGINS),
        SegmentState("call", (Transition("]]", ANSWER, opens=False),)),
    )
)


def transitions_in(rules: SegmentRules, text: bytes) -> list[tuple[int, Transition]]:
    """Return each transition in the text, with the position after its mark."""
    found: list[tuple[int, Transition]] = []
    state, start = rules.first, 0
    while True:
        rest = text[start:]
        blanks = len(rest) - len(rest.lstrip())
        marks = [
            (
                blanks if transition.at_start else rest.find(transition.mark.encode()),
                -len(transition.mark.encode()),
                transition,
            )
            for transition in rules.states[state].transitions
            if (
                rest[blanks:].startswith(transition.mark.encode())
                if transition.at_start
                else transition.mark.encode() in rest
            )
        ]
        if not marks:
            return found
        place, length, transition = min(marks, key=lambda mark: mark[:2])
        start += place - length
        state = transition.to
        found.append((start, transition))


def segment_places(rules: SegmentRules, tokens: Sequence[bytes]) -> list[tuple[str, int]]:
    """Return the segment of each token, and the token's index in it."""
    counts: Counter[str] = Counter()
    places: list[tuple[str, int]] = []
    for number, token in enumerate(tokens):
        before = b"".join(tokens[:number])
        state = rules.first
        for _, transition in transitions_in(rules, before):
            state = transition.to
        segment = rules.states[state].segment
        for _, transition in [
            transition for transition in transitions_in(rules, before + token) if transition[0] > len(before)
        ]:
            if transition.opens:
                segment = rules.states[transition.to].segment
        places.append((segment, counts[segment]))
        counts[segment] += 1
    return places
