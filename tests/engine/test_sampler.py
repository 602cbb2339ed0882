"""Sampling against transformers' logits processors and warpers, and against the definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from inference.engine.detokenizer import Detokenizer, TokenDecoder
from inference.engine.request import Sequence
from inference.engine.sampler import _adjust, _warp, note_token, sample
from tests.builders import build_request, build_tokenizer

VOCAB = 50
TOKENIZER = build_tokenizer().backend_tokenizer


def sequence(*, seed: int = 0, generated: tuple[int, ...] = (), **sampling) -> Sequence:
    request = build_request((1, 2, 3), **sampling)
    made = Sequence(
        request, object(), 0.0, 8, Detokenizer(TokenDecoder(TOKENIZER)), torch.Generator().manual_seed(seed)
    )
    made.token_ids.extend(generated)
    return made


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


@given(
    temperature=st.floats(0.1, 2.0),
    top_k=st.integers(0, VOCAB + 5),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.9),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_warpers_equal_transformers(temperature, top_k, top_p, min_p, seed):
    logits = random_logits(1, seed)
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1.0:
        expected = TopPLogitsWarper(top_p)(None, expected)
    if min_p:
        expected = MinPLogitsWarper(min_p)(None, expected)
    params = sequence(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p).request.sampling
    ours = _warp(logits, [params])
    torch.testing.assert_close(ours / ours.sum(-1, keepdim=True), expected.softmax(-1), atol=1e-5, rtol=1e-4)


def test_each_row_has_its_own_parameters():
    logits = random_logits(3)
    params = [sequence(temperature=0.5, top_k=3), sequence(temperature=1.5), sequence(temperature=1.0, top_p=0.3)]
    together = _warp(logits, [s.request.sampling for s in params])
    for i, s in enumerate(params):
        torch.testing.assert_close(together[i], _warp(logits[i : i + 1], [s.request.sampling])[0])


def test_repetition_penalty_equals_transformers():
    logits = random_logits(1)
    made = sequence(generated=(7, 7, 9), repetition_penalty=1.7)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([made.token_ids]), logits.clone())
    torch.testing.assert_close(_adjust(logits, [made]), expected)


def test_presence_and_frequency_are_openai_s_additive_penalties_over_generated_tokens():
    logits = torch.zeros(1, VOCAB)
    made = sequence(generated=(7, 7, 9), presence_penalty=0.5, frequency_penalty=0.25)
    got = _adjust(logits, [made])[0]
    assert got[7].item() == pytest.approx(-(0.5 + 2 * 0.25))
    assert got[9].item() == pytest.approx(-(0.5 + 0.25))
    assert got[1].item() == 0.0  # the prompt does not count
    made.token_ids.append(9)
    note_token(made, 9)
    assert _adjust(torch.zeros(1, VOCAB), [made])[0, 9].item() == pytest.approx(-(0.5 + 2 * 0.25))


def test_logit_bias_decides_and_touches_its_row_only():
    logits = random_logits(2)
    biased, plain = sequence(logit_bias=((4, 100.0),)), sequence()
    got = sample(logits, [biased, plain])
    assert got.token_ids == [4, int(logits[1].argmax())]


def test_everything_forbidden_still_gives_a_token():
    bias = tuple((i, -100.0) for i in range(VOCAB))
    got = sample(random_logits(1), [sequence(temperature=1.0, logit_bias=bias)])
    assert 0 <= got.token_ids[0] < VOCAB
    assert got.finite == [True]


def test_greedy_is_argmax():
    logits = random_logits(4)
    assert sample(logits, [sequence() for _ in range(4)]).token_ids == logits.argmax(-1).tolist()


def test_a_seed_gives_the_same_tokens_whoever_is_beside():
    logits = random_logits(3) / 3
    alone = [sample(logits[1:2], [s]).token_ids[0] for s in [sequence(seed=5, temperature=1.0)] for _ in range(20)]
    mine = sequence(seed=5, temperature=1.0)
    others = [sequence(seed=1, temperature=0.7), sequence(seed=2)]
    batched = [sample(logits, [others[0], mine, others[1]]).token_ids[1] for _ in range(20)]
    assert alone == batched
    assert len(set(alone)) > 3


def test_frequencies_follow_the_distribution():
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    logits = probs.log().nan_to_num(neginf=-1e4).unsqueeze(0)
    made = sequence(temperature=1.0, seed=3)
    counts = torch.bincount(torch.tensor([sample(logits, [made]).token_ids[0] for _ in range(4000)]), minlength=5)
    expected = probs * 4000
    chi2 = ((counts - expected)[:4] ** 2 / expected[:4]).sum().item()
    assert chi2 < 16.3  # 3 degrees of freedom, p = 0.001
    assert counts[4] == 0


def test_logprobs_are_the_model_s_own():
    logits = random_logits(1)
    got = sample(logits, [sequence(logprobs=3, temperature=0.2, seed=1, logit_bias=((4, 50.0),))])
    logprob = got.logprobs[0]
    reference = logits[0].log_softmax(-1)
    assert got.token_ids == [4]
    assert logprob.logprob == pytest.approx(reference[4].item(), abs=1e-5)
    assert [i for i, _ in logprob.top] == reference.topk(3).indices.tolist()
    assert [v for _, v in logprob.top] == pytest.approx(reference.topk(3).values.tolist(), abs=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_told_and_the_others_are_not_touched(value):
    logits = random_logits(2)
    poisoned = logits.clone()
    poisoned[0, 3] = value
    got = sample(poisoned, [sequence(temperature=1.0), sequence(temperature=1.0, seed=8)])
    assert got.finite == [False, True]
    assert got.token_ids[1] == sample(logits[1:], [sequence(temperature=1.0, seed=8)]).token_ids[0]
