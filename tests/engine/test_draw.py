"""Inverse transform, over a grid of numbers instead of random ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.engine.sampling.sampler import DRAW_BLOCK, draw, peaks
from tests.engine.sampling import random_logits


def grid(num: int) -> torch.Tensor:
    return (torch.arange(num, dtype=torch.float64) + 0.5) / num


@pytest.mark.parametrize("vocab", [1, 7, DRAW_BLOCK, DRAW_BLOCK + 1, 5 * DRAW_BLOCK - 3])
def test_tokens_are_drawn_as_often_as_their_weight_says(vocab):
    weights = random_logits(1, vocab=vocab).exp()
    num = 20_000
    drawn = draw(weights.expand(num, -1), grid(num))
    counts = torch.bincount(drawn, minlength=vocab).double()
    expected = (weights[0].double() / weights[0].double().sum()) * num
    assert (counts - expected).abs().max() < 1.1  # both borders of a token's interval are rounded


def test_it_is_the_inverse_of_the_cumulative_distribution():
    weights = random_logits(1, vocab=1000).exp()
    ends = np.cumsum(weights[0].double().numpy())
    expected = np.searchsorted(ends, grid(500).numpy() * ends[-1], side="right")
    drawn = draw(weights.expand(500, -1), grid(500)).numpy()
    assert (drawn != expected).sum() <= 1  # float32 sums of blocks against float64


@pytest.mark.parametrize(
    "allowed", [[0], [DRAW_BLOCK - 1], [DRAW_BLOCK], [3, 2 * DRAW_BLOCK + 1], [3 * DRAW_BLOCK - 1]]
)
def test_tokens_without_weight_are_never_drawn(allowed):
    weights = torch.zeros(1, 3 * DRAW_BLOCK)
    weights[0, allowed] = 0.1
    numbers = torch.tensor([0.0, 1e-300, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert set(draw(weights.expand(4, -1), numbers).tolist()) <= set(allowed)


@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf])
def test_a_row_without_a_distribution_harms_nobody(value):
    weights = random_logits(2, vocab=300).exp()
    expected = draw(weights[1:], grid(1))
    weights[0] = value
    drawn = draw(weights, torch.tensor([0.3, 0.5], dtype=torch.float64))
    assert 0 <= drawn[0] < 300
    assert drawn[1] == expected[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [3, 511, 512, 513, 5000])
def test_peaks_are_the_first_greatest_values(vocab, dtype):
    logits = random_logits(6, vocab=vocab).to(dtype)
    logits[3] = logits[3].round()  # ties
    logits[4] = -torch.inf
    logits[5, vocab // 2] = torch.nan
    values, places = peaks(logits)
    expected = np.argmax(logits.float().numpy(), axis=1)  # the first one, NaN is the greatest
    assert places.tolist() == expected.tolist()
    assert torch.equal(values[:5], logits.amax(-1)[:5])
    assert values[5].isnan()
