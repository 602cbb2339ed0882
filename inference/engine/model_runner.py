"""Runs a step's chunks through one model: a packed forward, steering, sampling."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.engine.attention import GroupPlaces, PackedBatch, Segment
from inference.engine.cache_plan import ModelCache
from inference.engine.cache_policy import BlockCopy, CacheOrder
from inference.engine.grammar import MaskComputer
from inference.engine.loader import LoadedModel
from inference.engine.logprobs import prompt_logprobs
from inference.engine.messages import TokenLogprob
from inference.engine.request import Sequence
from inference.engine.sampler import Sampled, Sampler
from inference.engine.scheduler import Chunk
from inference.engine.steering_step import SteeringStep
from inference.engine.steering_table import SteeringTable
from inference.engine.token_masks import TokenMasks
from inference.engine.verification import sample_and_verify


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Next tokens of the chunks that sample, in their order, and log-probabilities of prompt tokens by sequence.

    ``sampled`` has a row for each of ``sequences``, which may stand there several times in a row: then all its tokens
    but the last were drafts, and ``draft_steering`` has expected and actual applications for each of its drafts.
    """

    sampled: Sampled
    prompt_logprobs: dict[Sequence, tuple[TokenLogprob | None, ...]]
    sequences: list[Sequence]
    draft_steering: dict[Sequence, Iterator[tuple[int, int]]] = field(default_factory=dict)


class ModelRunner:
    """One model on its device, with its cache and its steering tables."""

    def __init__(self, loaded: LoadedModel, cache: ModelCache) -> None:
        self.loaded = loaded
        self._cache = cache
        self._orders: deque[CacheOrder] = deque()
        self.device = torch.device(loaded.device)
        self.steering = SteeringTable(loaded.module, self.device)
        self.masks = MaskComputer(loaded.grammars.vocab_size if loaded.grammars else loaded.vocab_size)
        self._sampler = Sampler()

    def forget_batch(self) -> None:
        """A sequence left, so that the next batch is another one."""
        self._sampler.forget()

    @torch.inference_mode()
    def run(self, chunks: list[Chunk]) -> StepOutput:
        """One forward pass over all chunks' tokens; advances each sequence's ``num_computed``."""
        self._tend_pool()
        wanted = _wanted_places(chunks)
        masks = self.masks.start([c.sequence.matcher for c in chunks for _ in range(c.num_sampled)])
        try:
            with self.steering.steering(_rows(chunks)) as step:
                logits = self._forward(chunks, wanted) if wanted else self._forward(chunks, [0])[:0]
        finally:
            masks.wait()
        draft_steering = _note_steering(chunks, step)
        output = _read_out(chunks, logits, self._sampler, masks.result())
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.num_own
        return replace(output, draft_steering=draft_steering)

    def _forward(self, chunks: list[Chunk], wanted: list[int]) -> Tensor:
        """``[len(wanted), vocab]`` logits of those places in the packed step."""
        tokens = [t for c in chunks for t in _chunk_tokens(c)]
        positions = [p for c in chunks for p in range(c.sequence.num_computed, c.sequence.num_computed + c.num_tokens)]
        output = self.loaded.module(
            input_ids=torch.tensor([tokens], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            logits_to_keep=torch.tensor(wanted, device=self.device),
            packed_batch=self._packed_batch(chunks),
        )
        return output.logits[0]  # type: ignore[no-any-return]

    def _packed_batch(self, chunks: list[Chunk]) -> PackedBatch:
        segments = tuple(segment for c in chunks for segment in _segments(c))
        slots = np.array([c.sequence.slot for c in chunks for _ in _segments(c)])
        num_single = next((i for i, s in enumerate(segments) if s.num_tokens > 1), len(segments))
        singles, prompts = segments[:num_single], segments[num_single:]
        return PackedBatch(
            segments=segments,
            num_single=num_single,
            lengths=self._int32([s.end for s in singles]),
            starts=self._int32([s.start for s in prompts]),
            counts=self._int32([s.num_tokens for s in prompts]),
            places=tuple(self._places(slots, segments, table) for table in self._cache.policy.tables),
            pool=self._cache.pool,
        )

    def _int32(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def _places(self, rows: NDArray[np.int64], segments: tuple[Segment, ...], table: NDArray[np.int32]) -> GroupPlaces:
        """Where the step's tokens are in one layer group; ``rows`` are the segments' in its table."""
        size = self._cache.policy.block_size
        lengths = np.array([s.num_tokens for s in segments])
        positions = np.concatenate([np.arange(s.start, s.end) for s in segments])
        blocks = table[np.repeat(rows, lengths), positions // size].astype(np.int64)
        width = -(-max(s.end for s in segments) // size)
        return GroupPlaces(
            slot_mapping=torch.from_numpy(blocks * size + positions % size).to(self.device),
            block_table=torch.from_numpy(table[rows, :width]).to(self.device),
        )

    def _tend_pool(self) -> None:
        """Copy and give back what the cache's policy decided on. What fails is still to be done at the next attempt."""
        self._orders.extend(self._cache.policy.orders())
        while self._orders:
            order = self._orders[0]
            if isinstance(order, BlockCopy):
                self._cache.pool.copy(order.group, order.source, order.target, order.num_tokens)
            else:
                self._cache.pool.discard(order.group, order.block, order.start, order.end)
            self._orders.popleft()


def _chunk_tokens(chunk: Chunk) -> list[int]:
    start = chunk.sequence.num_computed
    return [*chunk.sequence.token_ids[start : start + chunk.num_own], *chunk.drafts]


def _segments(chunk: Chunk) -> list[Segment]:
    """A chunk with drafts attends token by token, which is what the kernel for single tokens is fast at."""
    start = chunk.sequence.num_computed
    if chunk.drafts:
        return [Segment(start + i, 1) for i in range(chunk.num_tokens)]
    return [Segment(start, chunk.num_tokens)]


def _rows(chunks: list[Chunk]) -> list[int]:
    """The steering row of each token of the step; empty where none is steered."""
    if all(chunk.sequence.rows is None for chunk in chunks):
        return []
    rows: list[int] = []
    for chunk in chunks:
        sequence = chunk.sequence
        if sequence.rows is None:
            rows.extend([0] * chunk.num_tokens)
        else:
            rows.extend(sequence.rows.of_tokens(_chunk_tokens(chunk), sequence.num_computed, sequence.num_prompt))
    return rows


def _note_steering(chunks: list[Chunk], step: SteeringStep) -> dict[Sequence, Iterator[tuple[int, int]]]:
    """Book expected and actual applications of each steered sequence; returns those of its drafts, not booked."""
    of_drafts: dict[Sequence, Iterator[tuple[int, int]]] = {}
    num_tokens = sum(chunk.num_tokens for chunk in chunks)
    expected, applied = step.counts(num_tokens)
    first = 0
    for chunk in chunks:
        sequence, own, last = chunk.sequence, first + chunk.num_own, first + chunk.num_tokens
        if sequence.rows is not None:
            sequence.steering_expected += sum(expected[first:own])
            sequence.steering_applied += sum(applied[first:own])
            if chunk.drafts:
                of_drafts[sequence] = zip(expected[own:last], applied[own:last], strict=True)
        first = last
    return of_drafts


def _wanted_places(chunks: list[Chunk]) -> list[int]:
    """Places in the packed step whose logits are read: last tokens and before drafts, and prompts whose
    log-probabilities are asked.
    """
    places: list[int] = []
    first = 0
    for chunk in chunks:
        last = first + chunk.num_tokens - 1
        if chunk.sequence.wants_prompt_logprobs:
            places.extend(range(first, last + 1))
        else:
            places.extend(range(last + 1 - chunk.num_sampled, last + 1))
        first = last + 1
    return places


def _read_out(chunks: list[Chunk], logits: Tensor, sampler: Sampler, masks: TokenMasks | None) -> StepOutput:
    """Split the logits into those to sample from and those of prompts."""
    sampled_rows: list[int] = []
    prompts, first = {}, 0
    for chunk in chunks:
        sequence = chunk.sequence
        count = chunk.num_tokens if sequence.wants_prompt_logprobs else chunk.num_sampled
        if sequence.wants_prompt_logprobs:
            prompts[sequence] = _prompt_logprobs(sequence, chunk.num_tokens, logits[first : first + count])
        sampled_rows.extend(range(first + count - chunk.num_sampled, first + count))
        first += count
    sequences, sampled = sample_and_verify(sampler, chunks, logits[sampled_rows], masks)
    return StepOutput(sampled, prompts, sequences)


def _prompt_logprobs(sequence: Sequence, num_tokens: int, logits: Tensor) -> tuple[TokenLogprob | None, ...]:
    """Of the prompt's tokens after each of the chunk's places; None first for the prompt's own first token."""
    start = sequence.num_computed
    num_top = sequence.request.sampling.prompt_logprobs or 0
    first: list[TokenLogprob | None] = [None] if start == 0 else []
    following = sequence.token_ids[start + 1 : sequence.num_prompt][:num_tokens]
    return (*first, *prompt_logprobs(logits, following, num_top))
