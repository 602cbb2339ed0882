"""The sampler on an accelerator against the sampler on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference.engine.sampling.sampler import Sampler, note_token
from inference.engine.sampling.token_masks import TokenMasks
from tests.engine.sampling import random_logits, sequence

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

PARAMETERS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.02, "typical_p": 0.9},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5, "logprobs": 3},
    {"temperature": 1.0, "repetition_penalty": 1.5, "logprobs": 0},
    {"bad_words": ((4,), (5, 6)), "min_tokens": 3, "logit_bias": ((7, 2.0),)},
    {"allowed_token_ids": (3, 4, 5), "temperature": 1.0},
    {"logprobs": 5},
]


def run(device: str) -> list[tuple[list[int], list]]:
    sampler, steps = Sampler(), []
    rows = [sequence(seed=i, stop_ids=(2,), **parameters) for i, parameters in enumerate(PARAMETERS)]
    bits = torch.full((1, 1000), 0x5555, dtype=torch.int32)
    for step in range(6):
        logits = random_logits(len(rows), step, vocab=31_999).to(device, torch.bfloat16)
        got = sampler.sample(logits, rows, TokenMasks((9,), bits))
        for row, token in zip(rows, got.token_ids, strict=True):
            row.token_ids.append(token)
            note_token(row, token)
        assert all(got.finite)
        assert all(got.is_possible)
        steps.append((got.token_ids, got.logprobs))
    return steps


def test_an_accelerator_chooses_the_same_tokens():
    for (ours, our_logprobs), (theirs, their_logprobs) in zip(run("cuda"), run("cpu"), strict=True):
        assert ours == theirs
        for one, other in zip(our_logprobs, their_logprobs, strict=True):
            if one is not None:
                assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
                assert one.rank == other.rank
                assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-4)


def test_a_batch_makes_one_copy_to_the_host():
    rows = [
        sequence(),
        sequence(logprobs=2),
        sequence(temperature=1.0, top_k=20, top_p=0.9),
        sequence(temperature=1.0, top_p=0.9),
        sequence(temperature=0.7, typical_p=0.9, frequency_penalty=0.5, min_tokens=3),
    ]
    logits = random_logits(len(rows), vocab=32_000).to("cuda", torch.bfloat16)
    sampler = Sampler()
    sampler.sample(logits, rows)  # builds the table
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        sampler.sample(logits, rows)
    copies = [event for event in profile.events() if "Memcpy DtoH" in event.name]
    assert len(copies) == 1
