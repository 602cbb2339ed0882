from __future__ import annotations

import pytest

from inference.engine.scheduling.budgets import FRESH_STEPS, DraftBudget

LIKELY = [0.9**depth for depth in range(1, 5)]


def learned(seconds: dict[int, float], min_gain: float = 1.05) -> DraftBudget:
    budget = DraftBudget(min_gain)
    for num_tokens, took in seconds.items():
        budget.note(num_tokens, took)
    return budget


def test_a_plain_step_is_measured_first():
    assert DraftBudget(1.05).num_drafts(1, LIKELY) == 0
    assert learned({2: 0.03}).num_drafts(1, LIKELY) == 0


def test_what_more_tokens_cost_is_found_out():
    assert learned({1: 0.03}).num_drafts(1, LIKELY) == 4


def test_drafts_that_cost_nothing_all_run_even_unlikely_ones():
    assert learned({1: 0.03, 5: 0.03}).num_drafts(1, LIKELY) == 4
    assert learned({1: 0.03, 5: 0.03}).num_drafts(1, [0.1, 0.01]) == 2


def test_a_draft_ends_where_the_next_token_costs_more_than_it_gives():
    # A token more takes half a step: 1.95 tokens in 1.5, 2.85 in 2, 3.7 in 2.5, 4.0 in 3 steps' time.
    chances = [0.95, 0.9, 0.85, 0.3]
    assert learned({1: 0.02, 5: 0.06}).num_drafts(1, chances) == 3


def test_no_draft_runs_where_each_token_takes_its_full_time():
    assert learned({8: 0.08, 40: 0.40}).num_drafts(8, sorted(LIKELY * 8, reverse=True)) == 0


def test_a_gain_below_the_least_is_left():
    chances = [0.1]
    assert learned({1: 0.02, 2: 0.0212}, min_gain=1.05).num_drafts(1, chances) == 0
    assert learned({1: 0.02, 2: 0.0212}, min_gain=1.0).num_drafts(1, chances) == 1


def test_a_least_gain_of_0_always_drafts():
    assert learned({1: 0.02, 5: 9.0}, min_gain=0.0).num_drafts(1, LIKELY) == 4
    assert DraftBudget(0.0).num_drafts(1, LIKELY) == 4


def test_old_measurements_are_made_anew():
    budget = learned({1: 0.02, 5: 0.9})
    assert budget.num_drafts(1, LIKELY) == 0
    for _ in range(FRESH_STEPS):
        budget.note(1, 0.02)
    assert budget.num_drafts(1, LIKELY) == 4, "what five tokens took may have changed"
    for _ in range(FRESH_STEPS):
        budget.note(5, 0.02)
    assert budget.num_drafts(1, LIKELY) == 0, "and so may what one takes"


@pytest.mark.parametrize("num_tokens", [17, 24])
def test_steps_of_many_tokens_are_counted_together(num_tokens):
    budget = learned({16: 0.02, num_tokens: 0.9})
    assert budget.num_drafts(16, [0.9] * 7) == 0
