"""Sequences for tests of the policies: no model, no text."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch

from inference.engine.cache.prefix_keys import PrefixKeys, Programs
from inference.engine.output.detokenizer import Detokenizer, TokenDecoder
from inference.engine.scheduling.scheduler import Chunk
from inference.engine.scheduling.sequence import Sequence, SequenceState
from tests.builders import build_request

_intake = itertools.count()


class WordTokenizer:
    """Never asked for text here."""

    def decode(self, ids, skip_special_tokens=True) -> str:
        raise AssertionError("scheduling needs no text")


def build_sequence(
    prompt: int | tuple[int, ...] = 4,
    *,
    programs: Programs | None = None,
    priority: int = 0,
    submitted_at: float | None = None,
    cache_salt: str = "",
    **sampling,
) -> Sequence:
    """``prompt`` is its tokens or their number; a number makes tokens that no other sequence has."""
    number = next(_intake)
    if isinstance(prompt, int):
        prompt = tuple(range(1000 * number, 1000 * number + prompt))
    request = replace(build_request(prompt, **sampling), priority=priority, cache_salt=cache_salt)
    detokenizer = Detokenizer(TokenDecoder(WordTokenizer()))
    submitted_at = float(number) if submitted_at is None else submitted_at
    sequence = Sequence(request, object(), submitted_at, 1000, detokenizer, torch.Generator())
    if programs is not None:
        sequence.prefix_keys = PrefixKeys(sequence.prefix_keys.block_size, programs, len(prompt))
    return sequence


def compute(chunks: list[Chunk], token: int = 9) -> None:
    """What the engine does with the chunks of a step, the cache aside; drafts all prove wrong."""
    for chunk in chunks:
        samples = chunk.samples
        chunk.sequence.num_computed += chunk.num_own
        if samples:
            chunk.sequence.state = SequenceState.DECODE
            chunk.sequence.token_ids.append(token)
