from __future__ import annotations

import pytest

from inference.engine.scheduling.budgets import PREFILL_GRAIN, PrefillBudget


def learned(decode_s: float = 0.03, token_s: float = 0.001, factor: float = 2.0) -> PrefillBudget:
    budget = PrefillBudget(512, factor)
    budget.note(8, 0, decode_s)
    budget.note(0, 100, 100 * token_s)
    return budget


def test_all_is_allowed_while_nobody_decodes_or_nothing_is_known():
    assert PrefillBudget(512, 2.0).tokens(8, 8, 1) == 512
    assert learned().tokens(0, 0, 5) == 512


def test_a_step_takes_at_most_the_factor_times_as_long():
    assert learned().tokens(8, 8, 1) == 16  # 30 ms make 30 tokens, in grains of 16
    assert learned(factor=4).tokens(8, 8, 1) == 80


def test_each_who_waits_gets_as_much_time():
    assert learned().tokens(2, 2, 8) == 240  # eight times 30 tokens
    assert learned().tokens(15, 15, 1) == 16
    assert learned().tokens(1, 1, 1000) == 288  # 0.3 s


def test_only_older_sequences_limit_the_prompts():
    assert learned().tokens(8, 0, 1) == 288
    assert learned().tokens(8, 2, 1) == 112  # four times 30 tokens
    assert learned().tokens(8, 8, 1) == 16


def test_a_step_is_compared_with_one_of_as_many_sequences():
    budget = learned()
    budget.note(16, 0, 0.09)
    assert budget.tokens(16, 16, 1) == 80
    assert budget.tokens(12, 12, 1) == 48  # 60 ms, between those of 8 and 16
    assert budget.tokens(40, 40, 1) == 80  # the nearest measured one


def test_beside_a_burst_s_sequences_a_step_is_short():
    assert learned(token_s=0.0001).tokens(8, 0, 4) == 512  # 51 ms
    assert learned(token_s=0.0004).tokens(8, 0, 4) == 368  # 0.15 s
    assert learned(token_s=0.0006).tokens(8, 0, 4) == 320  # 0.19 s
    assert learned(token_s=0.0015).tokens(8, 0, 4) == 192  # 0.3 s


def test_on_a_slow_machine_it_has_tokens_enough_for_fast_products_if_these_do_not_take_many_seconds():
    assert learned(token_s=0.004).tokens(8, 0, 4) == 160  # 0.6 s
    slow = learned(decode_s=0.16, token_s=0.007)
    assert slow.tokens(8, 0, 4) == 128  # 0.9 s
    assert slow.tokens(8, 2, 8) == 128  # 5 s for 8 prompts and a quarter protected
    assert slow.tokens(0, 0, 4) == 512


def test_prompts_always_move_on():
    assert learned(token_s=10.0).tokens(8, 8, 1) == PREFILL_GRAIN


def test_factor_0_never_shrinks():
    assert learned(factor=0.0).tokens(8, 8, 1) == 512


def test_mixed_steps_teach_the_cost_of_a_prompt_token():
    budget = PrefillBudget(512, 2.0)
    budget.note(8, 0, 0.03)
    for _ in range(60):
        budget.note(8, 50, 0.03 + 50 * 0.0005)
    assert budget.tokens(8, 8, 1) == pytest.approx(48)
