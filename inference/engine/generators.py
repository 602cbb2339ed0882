"""Random numbers of a sequence: a generator that is determined by its request's seed and its number among the choices.

torch seeds its CPU generator with 32 bits, so a sum or a hash of seed and choice as a seed would give some choices the
numbers of other seeds. What does not fit, or is not the first choice, gets a whole state (624 words) from a hash.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

PLAIN_SEEDS = 2**32  # that torch tells apart
_WORDS = 624  # of 32 bits: the Mersenne Twister's state
_BEFORE_WORDS = 24  # bytes of torch's form of it: the seed, how many words are left, whether it is seeded, the next one
_LEFT = slice(8, 12)


def seeded_generator(seed: int, choice: int) -> torch.Generator:
    """Of one choice of a request with the seed. The first choice of small seeds has torch's own numbers for it."""
    if choice == 0 and 0 <= seed < PLAIN_SEEDS:
        return torch.Generator().manual_seed(seed)
    return derived_generator(seed, choice)


def derived_generator(seed: int, choice: int) -> torch.Generator:
    """Two generators have the same numbers only if both the seeds, of any size, and the choices are the same."""
    digest = hashlib.shake_256(f"miLLM {seed} {choice}".encode()).digest(4 * _WORDS)
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    words = np.frombuffer(digest, "<u4").astype(np.uint64)
    words[0] |= np.uint64(2**31)  # the only state that the generator never leaves is all zeros
    state[_BEFORE_WORDS : _BEFORE_WORDS + 8 * _WORDS] = torch.from_numpy(words.view(np.uint8))
    state[_LEFT] = torch.from_numpy(
        np.array([1], np.int32).view(np.uint8)
    )  # none: mix the words before the first number
    generator.set_state(state)
    return generator
