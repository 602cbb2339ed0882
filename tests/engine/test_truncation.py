"""Top-k, top-p, min-p and typical-p against transformers' warpers, a plain numpy version and their own properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from inference.engine.sampling.sampler import Sampler
from tests.engine.sampling import VOCAB, distribution, random_logits, sequence

LARGE = 20_000  # a vocabulary that the first look at the best tokens does not cover
PARAMETERS = {
    "temperature": st.floats(0.1, 2.0),
    "top_k": st.integers(0, VOCAB + 5),
    "top_p": st.floats(0.05, 1.0),
    "min_p": st.floats(0.0, 0.9),
    "typical_p": st.floats(0.05, 1.0),
}


def by_transformers(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0):
    scores = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(None, scores)
    if typical_p < 1.0:
        scores = TypicalLogitsWarper(typical_p)(None, scores)
    return scores.softmax(-1).double()


def by_numpy(logits: np.ndarray, *, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """A row by the definitions, sorted whole."""
    probs = np.exp(logits - logits.max())
    order = np.argsort(-probs, kind="stable")
    kept = order[: top_k or None]
    share = np.cumsum(probs[kept]) / probs[kept].sum()
    kept = kept[: np.searchsorted(share, top_p) + 1]
    kept = kept[probs[kept] >= min_p]
    found = np.zeros_like(probs)
    found[kept] = probs[kept]
    return found / found.sum()


def is_decided(probs: np.ndarray) -> bool:
    """Whether float32 can tell which tokens are the more typical ones: two of nearly one half each are equally so."""
    surprisal = -np.log(probs[probs > 0])
    distances = np.sort(np.abs(surprisal - probs[probs > 0] @ surprisal))
    return bool((np.diff(distances) > 1e-5).all())


@given(parameters=st.fixed_dictionaries(PARAMETERS), seed=st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_all_together_equal_transformers(parameters, seed):
    logits = random_logits(1, seed)
    assume(is_decided(by_transformers(logits, **{**parameters, "typical_p": 1.0})[0].numpy()))
    ours = distribution(logits, sequence(**parameters))
    torch.testing.assert_close(ours, by_transformers(logits, **parameters), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0])  # nearly flat ones need most of the vocabulary
@pytest.mark.parametrize(
    "parameters",
    [
        {"top_p": 0.1},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_k": 40, "top_p": 0.95},
        {"top_k": 3000},
        {"min_p": 0.02},
        {"typical_p": 0.3},
        {"typical_p": 0.95},
        {"top_p": 0.9, "typical_p": 0.9},
    ],
    ids=str,
)
def test_a_large_vocabulary_is_exact_although_it_is_not_sorted(scale, parameters):
    logits = random_logits(2, vocab=LARGE, scale=scale)
    ours = distribution(logits, *(sequence(temperature=1.0, **parameters) for _ in range(2)))
    expected = by_transformers(logits, **parameters)
    # Where float32 numbers are summed in another order tokens at the border may differ, more where all are alike.
    border = 20 if "typical_p" in parameters and scale < 0.1 else 2
    assert ((ours > 0) != (expected > 0)).sum() <= border
    torch.testing.assert_close(ours, expected, atol=2e-4, rtol=1e-3)


@given(top_k=st.integers(0, VOCAB), top_p=st.floats(0.05, 1.0), min_p=st.floats(0.0, 0.9), seed=st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_the_definitions(top_k, top_p, min_p, seed):
    logits = random_logits(1, seed)
    ours = distribution(logits, sequence(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p))
    expected = by_numpy(logits[0].double().numpy(), top_k=top_k, top_p=top_p, min_p=min_p)
    np.testing.assert_allclose(ours[0].numpy(), expected, atol=1e-6)


@given(
    logits=st.lists(st.integers(-3, 3), min_size=2, max_size=30),  # with many ties
    parameters=st.fixed_dictionaries(PARAMETERS),
    seed=st.integers(0, 100),
)
@example(
    logits=[0, 1, -1],  # the most typical one that is left is not the most probable
    parameters={"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 0.25},
    seed=0,
)
@settings(max_examples=80, deadline=None)
def test_the_order_of_the_vocabulary_does_not_matter(logits, parameters, seed):
    row = torch.tensor([logits], dtype=torch.float32)
    if (alone := distribution(row, sequence(**parameters))).max() == 1.0:  # one is left: the first of those that tie
        left = int(alone.argmax())
        assert logits.index(logits[left]) == left
        return
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(seed))
    made = sequence(**parameters)
    shuffled = distribution(row[:, order], made)
    torch.testing.assert_close(shuffled, distribution(row, made)[:, order], atol=1e-6, rtol=1e-5)


@given(
    parameters=st.lists(st.fixed_dictionaries(PARAMETERS), min_size=1, max_size=5),
    ties=st.booleans(),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_a_row_does_not_depend_on_the_rows_beside_it(parameters, ties, seed):
    logits = random_logits(len(parameters), seed, vocab=600)
    logits = logits.round() if ties else logits
    rows = [sequence(**one) for one in parameters]
    together = distribution(logits, *rows)
    for i, row in enumerate(rows):
        assert torch.equal(together[i], distribution(logits[i : i + 1], row)[0])


@given(top_p=st.floats(0.01, 1.0), seed=st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_a_nucleus_has_its_mass_and_not_a_token_more(top_p, seed):
    logits = random_logits(1, seed, vocab=600)
    full = logits[0].double().softmax(-1)
    kept = full[distribution(logits, sequence(temperature=1.0, top_p=top_p))[0] > 0]
    assert kept.sum() >= top_p - 1e-6
    assert kept.sum() - kept.min() < top_p + 1e-6


def test_tokens_that_tie_with_the_last_one_are_kept():
    logits = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0]])
    kept = distribution(logits, sequence(temperature=1.0, top_k=2))[0] > 0
    assert kept.tolist() == [True, True, True, True, False]


TIED = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0] * 200])  # greedy decoding takes the token 1


@pytest.mark.parametrize(
    "parameters",
    [{"top_k": 1}, {"top_p": 1e-12}, {"top_p": 1e-3}, {"top_k": 50, "top_p": 1e-3}, {"top_k": 1, "top_p": 0.9}],
    ids=str,
)
@pytest.mark.parametrize("also", [{}, {"min_p": 0.5}, {"typical_p": 0.5}, {"repetition_penalty": 1.1}], ids=str)
def test_one_token_only_is_the_greedy_one_whatever_ties_with_it(parameters, also):
    rows = [
        sequence(temperature=1.0, **parameters, **also),
        sequence(temperature=1.0),
        sequence(temperature=0.0, **also),
    ]
    for sampler in (Sampler(), Sampler(reach=8)):
        drawn = {tuple(sampler.sample(TIED.repeat(3, 1), rows).token_ids[::2]) for _ in range(30)}
        assert drawn == {(6, 6) if "repetition_penalty" in also else (1, 1)}  # 1 stands in the prompt


def test_a_row_with_one_token_leaves_its_neighbours_alone():
    rows = [sequence(temperature=1.0, top_p=top_p) for top_p in (0.9, 1e-6, 1.0, 0.5)]
    together = distribution(TIED.repeat(4, 1), *rows)
    assert [int((row > 0).sum()) for row in together] == [600, 1, 1000, 600]
    assert together[1, 1] == 1.0


@given(top_p=st.floats(0.01, 1.0), logits=st.lists(st.integers(0, 2), min_size=2, max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_top_p_that_one_token_suffices_for_keeps_one_token(top_p, logits):
    row = torch.tensor([logits], dtype=torch.float32)
    kept = distribution(row, sequence(temperature=1.0, top_p=top_p))[0] > 0
    best = row[0].double().softmax(-1).max().item()
    assume(abs(best - top_p) > 1e-6)
    if best > top_p:
        assert kept.nonzero().flatten().tolist() == [logits.index(max(logits))]
    else:
        assert kept.sum() > 1
        assert row[0][~kept].lt(row[0][kept].min()).all()


def test_hardly_any_temperature_is_greedy_and_a_small_one_is_finite():
    assert sequence(temperature=1e-300).request.sampling.is_greedy
    logits = random_logits(1)
    assert distribution(logits, sequence(temperature=2e-5))[0, logits.argmax()] == 1.0
