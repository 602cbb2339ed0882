"""Bans, biases and penalties against transformers' logits processors and OpenAI's definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from inference.engine.sampling.sampler import note_token
from inference.engine.sampling.token_masks import TokenMasks, unpack_by_shifts
from tests.engine.sampling import CPU, VOCAB, edited, random_logits, sequence

TOKEN = st.integers(0, 5)


def banned(logits: torch.Tensor) -> set[int]:
    return {i for i, value in enumerate(logits[0].tolist()) if value == -math.inf}


@given(penalty=st.floats(0.1, 5.0), generated=st.lists(st.integers(0, VOCAB - 1), max_size=80))
@settings(deadline=None)
def test_repetition_penalty_equals_transformers(penalty, generated):
    logits = random_logits(1)
    made = sequence(generated=tuple(generated), repetition_penalty=penalty, seed=1, logit_bias=((0, 0.0),))
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([made.token_ids]), logits.clone())
    torch.testing.assert_close(edited(logits, made), expected)


@given(
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    first=st.lists(TOKEN, max_size=20),
    later=st.lists(TOKEN, max_size=150),
)
@settings(deadline=None)
def test_presence_and_frequency_are_openai_s_additive_penalties_over_generated_tokens(
    presence, frequency, first, later
):
    made = sequence(
        generated=tuple(first), presence_penalty=presence, frequency_penalty=frequency, logit_bias=((0, 0.0),)
    )
    logits = random_logits(1)
    edited(logits, made)
    for token in later:
        made.token_ids.append(token)
        note_token(made, token)
    counts = torch.bincount(torch.tensor([*first, *later], dtype=torch.int64), minlength=VOCAB)
    expected = logits - frequency * counts - presence * (counts > 0)
    torch.testing.assert_close(edited(logits, made), expected, atol=1e-4, rtol=1e-5)


def test_a_history_grows_with_the_tokens_in_use():
    made = sequence(frequency_penalty=1.0)
    edited(torch.zeros(1, 500), made)
    for token in [*range(400), 7]:
        note_token(made, token)
    got = edited(torch.zeros(1, 500), made)[0]
    assert got[:400].tolist() == [-1.0 - (token == 7) for token in range(400)]
    assert not got[400:].any()


def test_logit_bias_equals_transformers():
    bias = {4: 2.5, 7: -100.0, 49: 1.0}
    logits = random_logits(1)
    expected = SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()})(
        torch.tensor([[1, 2, 3]]), logits.clone()
    )
    torch.testing.assert_close(edited(logits, sequence(logit_bias=tuple(bias.items()))), expected)


@given(
    words=st.lists(st.lists(TOKEN, min_size=1, max_size=4), min_size=1, max_size=8),
    generated=st.lists(TOKEN, max_size=12),
)
@settings(deadline=None)
def test_bad_words_equal_transformers(words, generated):
    logits = random_logits(1)
    made = sequence(generated=tuple(generated), bad_words=tuple(map(tuple, words)))
    processor = NoBadWordsLogitsProcessor(words, eos_token_id=None)
    expected = processor(torch.tensor([made.token_ids]), logits.clone())
    assert banned(edited(logits, made)) == banned(expected)


@pytest.mark.parametrize("num_generated", range(4))
def test_min_tokens_equal_transformers(num_generated):
    logits = random_logits(1)
    made = sequence(generated=(9,) * num_generated, min_tokens=2, stop_ids=(7, 11))
    processor = MinLengthLogitsProcessor(3 + 2, [7, 11], device="cpu")
    expected = processor(torch.tensor([made.token_ids]), logits.clone())
    assert torch.equal(edited(logits, made), expected)
    assert banned(expected) == ({7, 11} if num_generated < 2 else set())


def test_allowed_token_ids_are_the_only_ones():
    logits = random_logits(2)
    got = edited(logits, sequence(allowed_token_ids=(3, 8)), sequence(logit_bias=((0, 1.0),)))
    assert banned(got) == set(range(VOCAB)) - {3, 8}
    assert torch.equal(got[0, [3, 8]], logits[0, [3, 8]])
    assert not banned(got[1:])


def test_every_row_is_edited_as_if_it_were_alone():
    rows = [
        sequence(generated=(4, 4), presence_penalty=1.0, frequency_penalty=0.5),
        sequence(generated=(5,), repetition_penalty=2.0, bad_words=((5, 6), (9,))),
        sequence(min_tokens=3, stop_ids=(2,), logit_bias=((1, -3.0),)),
        sequence(allowed_token_ids=(4, 5), repetition_penalty=0.5),
    ]
    logits = random_logits(len(rows))
    together = edited(logits, *rows)
    for i, row in enumerate(rows):
        assert torch.equal(together[i], edited(logits[i : i + 1], row)[0])


@given(allowed=st.lists(st.sets(st.integers(0, 69)), min_size=2, max_size=2))
@settings(deadline=None)
def test_masks_ban_what_their_bits_do_not_name(allowed):
    bits = torch.zeros(2, 3, dtype=torch.int32)
    for row, tokens in enumerate(allowed):
        for token in tokens:
            value = int(bits[row, token // 32]) | (1 << token % 32)
            bits[row, token // 32] = value - 2**32 if value >= 2**31 else value
    masks = TokenMasks((2, 0), bits)
    logits = random_logits(3, vocab=70)
    got = edited(logits, *(sequence(temperature=1.0) for _ in range(3)), masks=masks)
    assert banned(got[2:]) == set(range(70)) - allowed[0]
    assert banned(got[:1]) == set(range(70)) - allowed[1]
    assert torch.equal(got[1], logits[1])
    assert torch.equal(unpack_by_shifts(bits)[:, :70] == 0, masks.banned(70, CPU))
