"""Reasoning ends when its budget is used up, and only then."""

from __future__ import annotations

import numpy as np
import pytest

from inference.engine.messages import ThinkingBudget
from inference.engine.sampling.token_masks import ThinkingMatcher

START, END, OTHER, SIZE = 3, 70, 5, 96


def allowed(matcher: ThinkingMatcher) -> set[int]:
    bits = np.empty(SIZE // 32, dtype=np.int32)
    matcher.fill(bits)
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize("end", [31, 32, 63, END])
@pytest.mark.parametrize("budget", [0, 1, 4])
def test_after_the_budget_only_the_end_is_allowed(budget: int, end: int):
    matcher = ThinkingMatcher(ThinkingBudget(budget, START, end, has_begun=True), None)
    for _ in range(budget):
        assert len(allowed(matcher)) == SIZE
        matcher.accept(OTHER)
    assert allowed(matcher) == {end}
    matcher.accept(end)
    for _ in range(10):
        assert len(allowed(matcher)) == SIZE
        matcher.accept(OTHER)
    assert not matcher.is_finished
    assert not matcher.error


def test_reasoning_that_has_not_begun_is_not_counted():
    matcher = ThinkingMatcher(ThinkingBudget(1, START, END), None)
    for token in (OTHER, OTHER, START, OTHER):
        assert len(allowed(matcher)) == SIZE
        matcher.accept(token)
    assert allowed(matcher) == {END}


def test_reasoning_that_ended_by_itself_does_not_begin_again():
    matcher = ThinkingMatcher(ThinkingBudget(0, START, END, has_begun=True), None)
    for token in (END, START, OTHER):
        matcher.accept(token)
    assert len(allowed(matcher)) == SIZE
