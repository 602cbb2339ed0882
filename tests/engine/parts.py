"""The parts of a text by a plain reading from its beginning, to judge the engine's by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inference.segments import PartRules, PartState, Turn

OPENING, THINKING, ANSWER, CALL = range(4)
BEGINS = (Turn("[[", CALL), Turn("{", CALL, at_start=True))
RULES = PartRules(
    (
        PartState("answer", (Turn("<t>", THINKING, at_start=True), *BEGINS)),
        PartState("thinking", (Turn("</t>", ANSWER, opens=False),)),
        PartState("answer", BEGINS),
        PartState("call", (Turn("]]", ANSWER, opens=False),)),
    )
)


def turns_in(rules: PartRules, text: bytes) -> list[tuple[int, Turn]]:
    """Each turn of the text, and where its mark ends."""
    found: list[tuple[int, Turn]] = []
    state, start = rules.first, 0
    while True:
        rest = text[start:]
        blanks = len(rest) - len(rest.lstrip())
        marks = [
            (blanks if turn.at_start else rest.find(turn.mark.encode()), -len(turn.mark.encode()), turn)
            for turn in rules.states[state].turns
            if (rest[blanks:].startswith(turn.mark.encode()) if turn.at_start else turn.mark.encode() in rest)
        ]
        if not marks:
            return found
        place, length, turn = min(marks, key=lambda mark: mark[:2])
        start += place - length
        state = turn.to
        found.append((start, turn))


def places_of(rules: PartRules, tokens: Sequence[bytes]) -> list[tuple[str, int]]:
    """Each token's part, by the text up to and with it, and its index there."""
    counts: Counter[str] = Counter()
    places: list[tuple[str, int]] = []
    for number, token in enumerate(tokens):
        before = b"".join(tokens[:number])
        state = rules.first
        for _, turn in turns_in(rules, before):
            state = turn.to
        part = rules.states[state].part
        for _, turn in [turn for turn in turns_in(rules, before + token) if turn[0] > len(before)]:
            if turn.opens:
                part = rules.states[turn.to].part
        places.append((part, counts[part]))
        counts[part] += 1
    return places
