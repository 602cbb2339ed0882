"""Whole steps of sampling; the parts are tested against outsiders beside this file."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.sampling.sampler import Sampler, note_token, sample
from inference.engine.sampling.token_masks import TokenMasks
from tests.engine.sampling import VOCAB, random_logits, sequence

SAMPLING = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 1.3]),
        "top_k": st.sampled_from([0, 5]),
        "top_p": st.sampled_from([1.0, 0.8]),
        "min_p": st.sampled_from([0.0, 0.05]),
        "typical_p": st.sampled_from([1.0, 0.9]),
        "presence_penalty": st.sampled_from([0.0, 0.5]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "bad_words": st.sampled_from([(), ((4,), (5, 6))]),
        "logprobs": st.sampled_from([None, 0, 3]),
    }
)


def test_logit_bias_decides_and_touches_its_row_only():
    logits = random_logits(2)
    biased, plain = sequence(logit_bias=((4, 100.0),)), sequence()
    got = sample(logits, [biased, plain])
    assert got.token_ids == [4, int(logits[1].argmax())]


def test_everything_forbidden_still_gives_a_token():
    bias = tuple((i, -100.0) for i in range(VOCAB))
    got = sample(random_logits(1), [sequence(temperature=1.0, logit_bias=bias)])
    assert 0 <= got.token_ids[0] < VOCAB
    assert got.finite == got.is_possible == [True]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_tokens_are_all_forbidden_says_so(temperature):
    rows = [sequence(temperature=temperature) for _ in range(2)]
    words = tuple((token,) for token in range(VOCAB))
    rows.append(sequence(temperature=temperature, bad_words=words))
    got = sample(random_logits(3), rows, TokenMasks((0,), torch.zeros(1, 2, dtype=torch.int32)))
    assert got.is_possible == [False, True, False]
    assert got.finite == [True] * 3


def test_a_masked_greedy_row_takes_the_best_allowed_token_and_tells_the_model_s_own_logprob():
    logits = random_logits(2)
    masks = TokenMasks((1,), torch.tensor([[1 << 9 | 1 << 3, 0]], dtype=torch.int32))
    got = sample(logits, [sequence(), sequence(logprobs=0)], masks)
    best = 9 if logits[1, 9] > logits[1, 3] else 3
    assert got.token_ids == [int(logits[0].argmax()), best]
    assert got.logprobs[0] is None
    assert got.logprobs[1].logprob == pytest.approx(logits[1].log_softmax(-1)[best].item(), abs=1e-5)


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


def test_no_rows_are_no_tokens():
    assert sample(random_logits(0), []).token_ids == []


def test_single_places_of_minus_infinity_are_fine():
    logits = random_logits(1)
    logits[0, 3] = -math.inf
    got = sample(logits, [sequence(temperature=1.0, logprobs=VOCAB)])
    assert got.finite == got.is_possible == [True]
    assert got.logprobs[0].top[-1] == (3, -math.inf)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_left_as_they_are(dtype):
    logits = random_logits(3).to(dtype)
    before = logits.clone()
    rows = [sequence(), sequence(logit_bias=((4, 100.0),), logprobs=1), sequence(temperature=0.5, top_k=1)]
    got = sample(logits, rows)
    best = logits.float().argmax(-1).tolist()
    assert got.token_ids == [best[0], 4, best[2]]
    assert torch.equal(logits, before)


def run(sampler: Sampler, rows: list, logits: list[torch.Tensor]) -> list[tuple]:
    """What each row got in steps with these logits."""
    steps = []
    for step in logits:
        got = sampler.sample(step, rows)
        for row, token in zip(rows, got.token_ids, strict=True):
            row.token_ids.append(token)
            note_token(row, token)
        steps.append(list(zip(got.token_ids, got.logprobs, strict=True)))
    return [tuple(step[i] for step in steps) for i in range(len(rows))]


@given(parameters=st.lists(SAMPLING, min_size=1, max_size=6), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_a_sequence_gets_the_same_whoever_is_beside_it(parameters, seed):
    steps = [random_logits(len(parameters), seed + i, scale=1.0) for i in range(4)]
    together = run(Sampler(), [sequence(seed=i, **p) for i, p in enumerate(parameters)], steps)
    for i, p in enumerate(parameters):
        alone = run(Sampler(), [sequence(seed=i, **p)], [step[i : i + 1] for step in steps])[0]
        assert [token for token, _ in alone] == [token for token, _ in together[i]]
        for (_, one), (_, other) in zip(alone, together[i], strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert one.rank == other.rank
                assert one.logprob == pytest.approx(other.logprob, abs=1e-6)
                assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_a_batch_that_changes_is_noticed():
    sampler, logits = Sampler(), random_logits(2)
    first, second = sequence(logit_bias=((4, 100.0),)), sequence()
    assert sampler.sample(logits, [first, second]).token_ids[0] == 4
    assert sampler.sample(logits, [second, first]).token_ids == [int(logits[0].argmax()), 4]
    assert sampler.sample(logits[:1], [second]).token_ids == [int(logits[0].argmax())]
    masks = TokenMasks((0,), torch.tensor([[1 << 7, 0]], dtype=torch.int32))
    assert sampler.sample(logits[:1], [second], masks).token_ids == [7]
    assert sampler.sample(logits[:1], [second]).token_ids == [int(logits[0].argmax())]


def test_a_seed_draws_the_distribution():
    """The numbers are the generator's own: the same tokens as by hand."""
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    made = sequence(temperature=1.0, seed=3)
    drawn = [sample(probs.log().unsqueeze(0), [made]).token_ids[0] for _ in range(64)]
    numbers = torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).flip(0)
    assert drawn == torch.searchsorted(probs.double().cumsum(0), numbers, right=True).tolist()


@pytest.mark.parametrize("reach", [1, 3, 20, 49, 50])
def test_a_search_that_is_too_short_is_made_again(reach):
    """As on an accelerator, where whether it suffices is told with the tokens themselves."""
    for seed in range(30):
        rows = [
            [sequence(seed=seed, temperature=t, **cut) for t, cut in ((3.0, {"top_p": 0.8}), (0.3, {"typical_p": 0.9}))]
            + [sequence(seed=seed, temperature=2.0, top_p=0.9, top_k=2), sequence(logprobs=2)]
            for _ in range(2)
        ]
        logits = random_logits(4, seed)
        ours, theirs = Sampler(reach).sample(logits, rows[0]), Sampler().sample(logits, rows[1])
        assert ours == theirs
        assert [s.uniforms for s in rows[0]] == [s.uniforms for s in rows[1]], "no number is drawn twice"
