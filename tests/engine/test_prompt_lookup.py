from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.scheduling.drafter import LEARNED_AT_ONCE, PromptLookup

TOKENS = st.integers(0, 3) | st.sampled_from([2**31, 2**32 - 1])


def searched(tokens: list[int], shortest: int, longest: int, count: int) -> tuple[int, ...]:
    """The same by looking at every place: the longest end, its latest earlier occurrence, read on into itself."""
    for n in range(longest, shortest - 1, -1):
        for place in range(len(tokens) - 1, n - 1, -1):
            if len(tokens) > n and tokens[place - n : place] == tokens[-n:]:
                read = tokens[place:]
                while len(read) < count:
                    read.append(read[len(read) - (len(tokens) - place)])
                return tuple(read[:count])
    return ()


@given(
    tokens=st.lists(TOKENS, min_size=1, max_size=60),
    sizes=st.tuples(st.integers(1, 5), st.integers(0, 4)),
    count=st.integers(1, 7),
    seen=st.sets(st.integers(1, 60)),
)
def test_a_growing_index_finds_what_a_search_finds(tokens, sizes, count, seen):
    shortest, longest = sizes[0], sum(sizes)
    lookup = PromptLookup(shortest, longest)
    for length in range(1, len(tokens) + 1):
        if length in seen or length == len(tokens):  # it need not be asked after each token
            known = tokens[:length]
            assert lookup.propose(known, count) == searched(known, shortest, longest, count)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 9, 8, 1, 2, 3], (9, 8, 1, 2)),
        ([1, 2, 7, 9, 2, 8, 1, 2], (7, 9, 2, 8)),  # the longer match goes before the later one
        ([5, 2, 7, 5, 2, 8, 5, 2], (8, 5, 2, 8)),  # of equal ones the later, and on as a loop
        ([4, 4, 4], (4, 4, 4, 4)),
        ([1, 2, 3, 4], ()),
        ([7], ()),
    ],
)
def test_examples(tokens, expected):
    assert PromptLookup(1 if len(tokens) > 4 else 2, 3).propose(tokens, 4) == expected


def test_a_long_prompt_is_learnt_in_several_calls():
    tokens = [*range(3 * LEARNED_AT_ONCE), 0, 1]
    lookup = PromptLookup(2, 4)
    answers = [lookup.propose(tokens, 3) for _ in range(5)]
    assert answers == [(), (), (), (2, 3, 4), (2, 3, 4)]


def test_a_token_costs_the_same_in_a_long_sequence():
    """Counted, not timed: how many tokens are looked at."""

    class Counting(list[int]):
        looked_at = 0

        def __getitem__(self, key):
            got = super().__getitem__(key)
            Counting.looked_at += len(got) if isinstance(key, slice) else 1
            return got

    costs = []
    for length in (100, 1900):
        tokens = Counting([i % 97 for i in range(length)])
        lookup = PromptLookup(2, 4)
        lookup.propose(tokens, 4)
        Counting.looked_at = 0
        for i in range(50):
            tokens.append((length + i) % 97)
            assert lookup.propose(tokens, 4)
        costs.append(Counting.looked_at)
    assert costs[0] == costs[1] <= 50 * 6
