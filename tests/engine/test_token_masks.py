from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.engine.messages import GenerationRequest, SamplingParams
from inference.engine.sampling.sampler import sample
from inference.engine.sampling.token_masks import TokenMasks, unpack_by_shifts
from inference.engine.scheduling.sequence import Sequence

VOCAB = 70  # no multiple of 32


def packed(allowed: list[set[int]], words: int = 3) -> torch.Tensor:
    """llguidance's layout, written with plain integers."""
    values = np.zeros((len(allowed), words), dtype=np.uint32)
    for row, ids in enumerate(allowed):
        for i in ids:
            values[row, i // 32] |= np.uint32(1 << (i % 32))
    return torch.from_numpy(values.view(np.int32))


def masked_by(masks: TokenMasks, logits: torch.Tensor) -> torch.Tensor:
    rows = list(masks.rows)
    masked = logits.clone()
    masked[rows] = masked[rows].masked_fill(masks.banned(logits.shape[1], logits.device), float("-inf"))
    return masked


def sequence(**fields) -> Sequence:
    request = GenerationRequest("r", "tiny", (1,), SamplingParams(**fields))
    return Sequence(request, None, 0.0, 10, None, torch.Generator().manual_seed(0))  # type: ignore[arg-type]


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))


def test_only_the_named_rows_are_masked_and_the_logits_stay(logits):
    before = logits.clone()
    masked = masked_by(TokenMasks((0, 2), packed([{0, 31, 32, 69}, {5}])), logits)
    assert torch.equal(logits, before)
    assert torch.isfinite(masked[0]).nonzero().flatten().tolist() == [0, 31, 32, 69]
    assert torch.equal(masked[1], logits[1])
    assert torch.isfinite(masked[2]).nonzero().flatten().tolist() == [5]
    assert torch.equal(masked[0, [0, 31, 32, 69]], logits[0, [0, 31, 32, 69]])


@pytest.mark.parametrize("words", [1, 2, 3, 5])
def test_masks_may_be_narrower_or_wider_than_the_logits(logits, words):
    masked = masked_by(TokenMasks((1,), packed([{3, 32 * words - 1}], words)), logits)
    expected = [i for i in (3, 32 * words - 1) if i < VOCAB]
    assert torch.isfinite(masked[1]).nonzero().flatten().tolist() == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.gpu
def test_both_devices_unpack_alike(logits):
    masks = TokenMasks((0, 1, 2), torch.randint(-(2**31), 2**31 - 1, (3, 3), dtype=torch.int32))
    assert torch.equal(masked_by(masks, logits), masked_by(masks, logits.cuda()).cpu())


def test_the_shift_form_unpacks_as_the_octet_form():
    masks = TokenMasks((0, 1, 2), torch.randint(-(2**31), 2**31 - 1, (3, 3), dtype=torch.int32))
    assert masks.banned(VOCAB, torch.device("meta")).shape == (3, VOCAB)
    shifted = unpack_by_shifts(masks.bits)[:, :VOCAB] == 0
    assert torch.equal(shifted, masks.banned(VOCAB, torch.device("cpu")))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_parameter_brings_a_forbidden_token_back(logits, temperature):
    fields = {
        "temperature": temperature,
        "logit_bias": ((7, 100.0), (40, -100.0)),
        "repetition_penalty": 2.0,
        "presence_penalty": 2.0,
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0.9,
        "logprobs": 2,
    }
    masks = TokenMasks((0,), packed([{40, 41}]))
    for _ in range(20):
        sampled = sample(logits, [sequence(**fields), sequence(), sequence()], masks)
        assert sampled.token_ids[0] in {40, 41}
        assert sampled.finite == [True, True, True]
    top = sampled.logprobs[0].top[0]
    assert top == (int(logits[0].argmax()), pytest.approx(float(logits[0].log_softmax(-1).max())))


def test_a_greedy_row_takes_the_best_allowed_token(logits):
    allowed = {3, 17, 44, 69}
    sampled = sample(logits, [sequence(temperature=0.0)] * 3, TokenMasks((1,), packed([allowed])))
    assert sampled.token_ids[1] == max(allowed, key=lambda i: float(logits[1, i]))
    assert [sampled.token_ids[0], sampled.token_ids[2]] == logits[[0, 2]].argmax(-1).tolist()
