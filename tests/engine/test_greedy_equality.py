"""Greedy output equals transformers' generate, however requests are run."""

from __future__ import annotations

import pytest

from tests.engine.harness import EngineHarness, reference_tokens

PROMPTS = [tuple(range(3 + 7 * i, 3 + 7 * i + length)) for i, length in enumerate((1, 4, 19, 33))]
NUM_TOKENS = 24


def test_alone(loaded):
    for prompt in PROMPTS:
        got = EngineHarness(loaded).generate(prompt=prompt, max_tokens=NUM_TOKENS)
        assert got.token_ids == reference_tokens(loaded, prompt, NUM_TOKENS)


@pytest.mark.parametrize("max_prefill_tokens", [1, 3, 7, 256])
def test_batched_and_chunked(loaded, max_prefill_tokens):
    harness = EngineHarness(loaded, max_prefill_tokens=max_prefill_tokens)
    got = [harness.add(prompt=prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS]
    harness.run()
    for prompt, transcript in zip(PROMPTS, got, strict=True):
        assert transcript.token_ids == reference_tokens(loaded, prompt, NUM_TOKENS)


def test_after_neighbours_leave_and_slots_are_reused(loaded):
    harness = EngineHarness(loaded, max_batch_size=2, max_prefill_tokens=5)
    short = harness.add(prompt=PROMPTS[2], max_tokens=2)
    cancelled = harness.add(prompt=PROMPTS[3], max_tokens=200)
    late = [harness.add(prompt=prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS]
    for _ in range(12):
        harness.step()
    harness.cancel(cancelled)
    harness.run()
    assert short.token_ids == reference_tokens(loaded, PROMPTS[2], 2)
    assert cancelled.finished.reason == "cancelled"
    for prompt, transcript in zip(PROMPTS, late, strict=True):
        assert transcript.token_ids == reference_tokens(loaded, prompt, NUM_TOKENS)


def test_longer_than_the_sliding_window_and_the_first_capacity(loaded):
    prompt = tuple(3 + i % 390 for i in range(140))
    got = EngineHarness(loaded, max_prefill_tokens=32).generate(prompt=prompt, max_tokens=60)
    assert got.token_ids == reference_tokens(loaded, prompt, 60)
