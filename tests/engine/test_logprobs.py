from __future__ import annotations

import pytest
import torch

from inference.engine.sampling.logprobs import PLACES_AT_ONCE, prompt_logprobs
from tests.engine.sampling import VOCAB, random_logits


@pytest.mark.parametrize("num_places", [1, PLACES_AT_ONCE, 2 * PLACES_AT_ONCE + 5])
@pytest.mark.parametrize("num_top", [0, 3, VOCAB + 1])
def test_prompt_logprobs_are_log_softmax(num_places, num_top):
    logits = random_logits(num_places + 1)  # the last place predicts no token of the prompt
    ids = [(7 * i) % VOCAB for i in range(num_places)]
    expected = logits.log_softmax(-1)
    for row, token, got in zip(expected, ids, prompt_logprobs(logits, ids, num_top), strict=False):
        best = row.topk(min(num_top, VOCAB))
        assert got.token_id == token
        assert got.logprob == pytest.approx(row[token].item(), abs=1e-5)
        assert got.rank == 1 + int((row > row[token]).sum())
        assert [i for i, _ in got.top] == best.indices.tolist()
        assert [v for _, v in got.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_no_tokens_have_no_logprobs():
    assert prompt_logprobs(torch.zeros(2, VOCAB), [], 3) == []
