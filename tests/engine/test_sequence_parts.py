"""To which part each token belongs, against a reading of the whole text from its beginning at every token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.output.segments import SequenceSegments
from inference.segments import ANSWER_ONLY, SegmentRules, SegmentState, Transition
from tests.engine.reference_segments import ANSWER, RULES, THINKING, segment_places

BEGUN = SegmentRules(RULES.states, THINKING)
ARROWS = SegmentRules(  # marks of several bytes a character
    (
        SegmentState("answer", (Transition("◁x▷", 1), Transition("a◁▷", 2), Transition("aab", 1))),
        SegmentState("thinking", (Transition("◁/x▷", 0, opens=False),)),
        SegmentState("call", (Transition("▷", 0, opens=False),)),
    )
)
LETTERS = ["<t>", "</t>", "[[", "]]", "{", "<", "t", ">", "/", "[", "]", " ", "\n", "x", "é", "aab"]
SYMBOLS = [*LETTERS, "◁x▷", "◁/x▷", "!", "◁", "▷", "a"]


def parts_of(rules: SegmentRules, pieces: Sequence[bytes]) -> SequenceSegments:
    return SequenceSegments(rules, lambda token: pieces[token])


def names(rules: SegmentRules, pieces: Sequence[str]) -> str:
    """The first letter of each token's part."""
    tokens = [piece.encode() for piece in pieces]
    found = parts_of(rules, tokens)
    return "".join(part[0] for part, _ in found.places(range(len(tokens)), 0))


@st.composite
def cut_texts(draw: st.DrawFn) -> list[bytes]:
    text = "".join(draw(st.lists(st.sampled_from(SYMBOLS), max_size=24))).encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=len(text))) | {0, len(text)})
    pieces = [text[start:end] for start, end in itertools.pairwise(cuts)]
    empty = draw(st.sets(st.integers(0, len(pieces)), max_size=3))  # tokens without text
    for place in sorted(empty, reverse=True):
        pieces.insert(place, b"")
    return pieces


@given(pieces=cut_texts(), rules=st.sampled_from([RULES, BEGUN, ARROWS, ANSWER_ONLY]), num_taken=st.integers(0, 40))
def test_any_text_however_it_is_cut_is_read_as_a_whole(pieces: list[bytes], rules: SegmentRules, num_taken: int):
    """What is taken and what is guessed alike, and guesses leave nothing behind."""
    found = parts_of(rules, pieces)
    tokens = list(range(len(pieces)))
    expected = segment_places(rules, pieces)
    found.take(tokens[:num_taken])
    found.places([*tokens[:2], *tokens], 0)
    assert found.places(tokens, 0) == expected
    found.take(tokens[num_taken:])
    assert found.num_known == len(tokens)
    for first in range(len(tokens)):
        assert found.places(tokens[first:], first) == expected[first:]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["<t>", "x", "</t>", "x"], "ttta"),
        (["<", "t", ">", "x", "</", "t", ">", "x"], "aatttt" + "ta"),  # of a mark in pieces the last one tells
        ([" \n", "<t>", "x"], "att"),
        (["x", "<t>", "x"], "aaa"),  # only at the beginning
        (["<t>", "</t>", "<t>", "x"], "ttaa"),  # only once
        (["x", "[[", "x", "]]", "x", "[[", "x"], "acccacc"),
        (["<t>", "[[", "</t>", "[[", "{"], "tttcc"),  # no calls in thoughts
        (["{", "x"], "cc"),
        (["\n", "{", "]]", "x"], "acca"),
        (["x", "{", "x"], "aaa"),
        (["<t>", "x</t>[[y"], "tc"),  # one token that ends the one and begins the other
        (["x</t>"], "a"),
        ([], ""),
    ],
)
def test_marks_belong_to_what_they_enclose(pieces: list[str], expected: str):
    assert names(RULES, pieces) == expected


def test_reasoning_that_the_prompt_began_needs_no_mark():
    assert names(BEGUN, ["x", "</t>", "x", "<t>"]) == "ttaa"


def test_without_rules_all_is_the_answer():
    assert names(ANSWER_ONLY, ["<t>", "[[", "x"]) == "aaa"


def test_long_texts_are_not_kept():
    found = parts_of(SegmentRules(RULES.states, ANSWER), [b"x" * 10_000])
    found.take([0] * 50)
    assert len(found._position.tail) < 10
