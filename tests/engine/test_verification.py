"""Which of a draft's places count, by logits that are given."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.sampling.sampler import NUMBERS_AT_ONCE, Sampled, Sampler, sample
from inference.engine.sampling.verification import sample_and_verify
from inference.engine.scheduling.scheduler import Chunk
from inference.engine.scheduling.sequence import Sequence
from tests.engine.sampling import VOCAB, random_logits, sequence


def decoding(**sampling) -> Sequence:
    made = sequence(**sampling)
    made.num_computed = made.num_tokens - 1
    return made


def verified(drafts: tuple[int, ...], chosen: list[int], *, broken: int | None = None) -> Sampled:
    logits = torch.zeros(1 + len(drafts), VOCAB)
    logits[range(len(chosen)), chosen] = 9.0
    if broken is not None:
        logits[broken] = torch.nan
    owner = decoding()
    sequences, sampled = sample_and_verify(Sampler(), [Chunk(owner, len(logits), drafts)], logits, None)
    assert sequences == [owner] * len(sampled.token_ids)
    return sampled


@pytest.mark.parametrize(
    ("drafts", "chosen", "kept"),
    [
        ((), [7], [7]),
        ((7, 8), [7, 8, 9], [7, 8, 9]),
        ((7, 8), [7, 5, 9], [7, 5]),
        ((7, 8), [5, 8, 9], [5]),  # what comes after a wrong one is no match
    ],
)
def test_tokens_count_up_to_the_first_that_was_not_drafted(drafts, chosen, kept):
    assert verified(drafts, chosen).token_ids == kept


def test_a_broken_place_counts_only_where_it_is_reached():
    assert verified((7, 8), [7, 8, 9], broken=1).finite == [True, False]
    assert verified((7, 8), [5, 8, 9], broken=1).finite == [True]


@given(
    lengths=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=40),
    first=st.integers(0, NUMBERS_AT_ONCE),
)
def test_each_token_uses_one_number_and_in_order(lengths, first):
    """Drafts that are right up to a place of the test's choice; logits are always the same."""
    row = random_logits(1)
    plain, guessed = (decoding(temperature=1.0, seed=4) for _ in range(2))
    for owner in (plain, guessed):
        for _ in range(first):
            sample(row, [owner])
    for num_drafts, num_right in lengths:
        expected = [sample(row, [plain]).token_ids[0] for _ in range(min(num_drafts, num_right) + 1)]
        wrong = (expected[-1] + 1) % VOCAB
        drafts = (*expected[:-1], *[wrong] * (num_drafts - len(expected) + 1))
        logits = row.expand(1 + num_drafts, -1)
        _, sampled = sample_and_verify(Sampler(), [Chunk(guessed, 1 + num_drafts, drafts)], logits, None)
        assert sampled.token_ids == expected


@pytest.mark.parametrize("reach", [1, 3, 20])
def test_a_search_that_is_made_again_takes_each_place_s_own_number_again(reach):
    for seed in range(20):
        owners = [decoding(temperature=3.0, top_p=0.8, seed=seed) for _ in range(2)]
        logits = random_logits(4, seed)
        tokens = sample(logits, [decoding(temperature=3.0, top_p=0.8, seed=seed)] * 4).token_ids
        drafts = (*tokens[:2], (tokens[2] + 1) % VOCAB)
        found = [
            sample_and_verify(sampler, [Chunk(owner, 4, drafts)], logits, None)[1]
            for sampler, owner in zip((Sampler(reach), Sampler()), owners, strict=True)
        ]
        assert found[0] == found[1]
        assert found[0].token_ids == tokens[:3]
        assert owners[0].uniforms == owners[1].uniforms
