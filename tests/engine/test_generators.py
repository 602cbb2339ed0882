"""Random numbers by seed and choice: reproducible, and no two of them alike."""

from __future__ import annotations

import hashlib
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.scheduling.intake import RequestIntake, derived_generator, seeded_generator
from tests.builders import build_request
from tests.engine.harness import EngineHarness

PROMPT = (5, 6, 7)
SEEDS = (-(2**63), -1, 0, 1, 2, 7, 8, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33, 2**62, 2**63 - 1)


def numbers(generator: torch.Generator, count: int = 8) -> tuple[float, ...]:
    return tuple(torch.rand(count, dtype=torch.float64, generator=generator).tolist())


def test_no_choice_of_a_seed_has_the_numbers_of_another():
    """torch alone tells seeds apart by 32 bits; the choice used to be added to the seed."""
    found = {numbers(seeded_generator(seed, choice)) for seed, choice in product(SEEDS, range(20))}
    assert len(found) == len(SEEDS) * 20


@given(seed=st.integers(-(2**63), 2**63 - 1), choice=st.integers(0, 2**20))
def test_they_are_the_same_each_time(seed, choice):
    assert numbers(seeded_generator(seed, choice)) == numbers(seeded_generator(seed, choice))


@pytest.mark.parametrize("seed", [0, 6, 2**32 - 1])
def test_the_first_choice_of_a_small_seed_has_torch_s_own_numbers(seed):
    assert numbers(seeded_generator(seed, 0)) == numbers(torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("seed", "choice"), [(5, 1), (-1, 0), (2**40, 3)])
def test_the_whole_state_comes_from_the_hash(seed, choice):
    """numpy's Mersenne Twister with the same words gives the same numbers: torch's form of the state is as we think."""
    words = np.frombuffer(hashlib.shake_256(f"miLLM {seed} {choice}".encode()).digest(4 * 624), "<u4").copy()
    words[0] |= 2**31
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    raw = twister.random_raw(2000).astype(np.uint64)
    expected = ((raw[0::2] << np.uint64(32) | raw[1::2]) & np.uint64(2**53 - 1)) * 2.0**-53
    assert numbers(derived_generator(seed, choice), 1000) == tuple(expected)


def test_a_state_can_be_put_back():
    """As a step does that is undone."""
    generator = derived_generator(5, 1)
    generator.get_state()
    numbers(generator, 300)
    state = generator.get_state()
    first = numbers(generator, 1000)
    generator.set_state(state)
    assert numbers(generator, 1000) == first


def test_neighbouring_seeds_share_no_choice(llama):
    harness = EngineHarness(llama)
    made = [
        harness.add(prompt=PROMPT, temperature=1.5, seed=seed, index=index, max_tokens=12, ignore_eos=True)
        for seed in range(40, 44)
        for index in range(4)
    ]
    harness.run()
    assert len({tuple(each.token_ids) for each in made}) == len(made)


def test_a_choice_does_not_depend_on_how_many_there_are(llama):
    def choices(count: int) -> list[list[int]]:
        harness = EngineHarness(llama)
        made = [harness.add(prompt=PROMPT, temperature=1.0, seed=9, index=i, max_tokens=10) for i in range(count)]
        harness.run()
        return [each.token_ids for each in made]

    assert choices(4)[:2] == choices(2)


def test_requests_without_a_seed_have_more_than_32_bits_of_chance(llama):
    arrivals = RequestIntake(llama, 64, seed=3)
    made = {numbers(arrivals._generator(build_request())) for _ in range(300)}
    assert len(made) == 300
    assert not made & {numbers(torch.Generator().manual_seed(seed)) for seed in range(300)}
