"""Verify drafts: sample a token at each drafted place, and accept drafts while they equal the sampled tokens.

A draft is a single token, not a distribution, so sampling from the model's distribution and comparing is exact: all
outputs have the same probability as without drafts. Each produced token uses one number of its sequence's generator, so
a seeded request gives the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from torch import Tensor

from inference.engine.sampling.sampler import Meanwhile, Sampled, Sampler, draw_ahead
from inference.engine.sampling.token_masks import TokenMasks
from inference.engine.scheduling.scheduler import Chunk
from inference.engine.scheduling.sequence import Sequence


def sample_and_verify(
    sampler: Sampler,
    chunks: Many[Chunk],
    logits: Tensor,
    masks: TokenMasks | None,
    meanwhile: Meanwhile | None = None,
) -> tuple[list[Sequence], Sampled]:
    """Sample tokens for the chunks that sample, one per sequence and one more per accepted draft token.

    ``logits``: ``[places, vocab]``, with :attr:`Chunk.num_sampled` places per chunk. ``meanwhile``: see
    :meth:`Sampler.sample`.
    """
    chunks = [chunk for chunk in chunks if chunk.samples]
    sequences = [chunk.sequence for chunk in chunks for _ in range(chunk.num_sampled)]
    numbers = {c.sequence: _numbers(c) for c in chunks if c.drafts and not c.sequence.request.sampling.is_greedy}
    for chunk in chunks:
        chunk.sequence.drafts = chunk.drafts
    sampled = sampler.sample(logits, sequences, masks, meanwhile)
    if not any(chunk.drafts for chunk in chunks):
        return sequences, sampled
    kept: list[int] = []
    first = 0
    for chunk in chunks:
        count = 1 + _num_right(chunk.drafts, sampled, first)
        kept.extend(range(first, first + count))
        first += chunk.num_sampled
        if chunk.sequence in numbers:
            held = numbers[chunk.sequence]
            chunk.sequence.uniforms[:] = held[: len(held) - count]
    return [sequences[row] for row in kept], _rows(sampled, kept)


def _numbers(chunk: Chunk) -> list[float]:
    """Return the sequence's unused random numbers, at least one per place. The last one is used next."""
    draw_ahead(chunk.sequence, chunk.num_sampled)
    return list(chunk.sequence.uniforms)


def _num_right(drafts: tuple[int, ...], sampled: Sampled, first: int) -> int:
    """Return the number of leading drafts that equal the tokens sampled at the places before them."""
    for i, draft in enumerate(drafts):
        row = first + i
        if sampled.token_ids[row] != draft or not sampled.finite[row] or not sampled.is_possible[row]:
            return i
    return len(drafts)


def _rows(sampled: Sampled, rows: list[int]) -> Sampled:
    return Sampled(
        [sampled.token_ids[row] for row in rows],
        [sampled.logprobs[row] for row in rows],
        [sampled.finite[row] for row in rows],
        [sampled.is_possible[row] for row in rows],
    )
