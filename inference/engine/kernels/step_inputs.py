"""The inputs of a forward pass: built on the host as arrays, and copied to the device at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.engine.cache.pool import KVPool
from inference.engine.kernels.attention import GroupPlaces, PackedBatch, TokenSpan
from inference.engine.kernels.attention_calls import AttentionCall
from inference.engine.kernels.varlen_attention import VarlenAttention, VarlenStep

ALIGNMENT = 16  # bytes
MOST_NEEDED = 0.5  # share of a step's tokens up to which the last layer leaves out the outputs of the others


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step on the host. Single tokens come first, then chunks; ``single_ends`` and ``chunk_ends`` count from 0."""

    tokens: NDArray[np.int64]  # [tokens]
    positions: NDArray[np.int64]  # [tokens]
    logit_places: NDArray[np.int64]  # places whose logits are computed
    steering_rows: NDArray[np.int64]  # [tokens]
    slots: tuple[NDArray[np.int64], ...]  # by layer group: [tokens]
    tables: tuple[NDArray[np.int32], ...]  # by layer group: [segments, blocks]
    lengths: NDArray[np.int32]  # [segments]
    single_ends: NDArray[np.int32]  # [singles + 1]
    chunk_ends: NDArray[np.int32]  # [chunks + 1]
    chunk_starts: NDArray[np.int32]  # [chunks]: the position of each one's first token
    chunk_counts: NDArray[np.int32]  # [chunks]
    starts: tuple[NDArray[np.int32], ...]  # by layer group: [segments + 1]; empty for a paged cache

    def flat(self) -> list[NDArray[Any]]:
        """Return all arrays, in a fixed order."""
        return [array for value in _values(self) for array in (value if isinstance(value, tuple) else (value,))]


_values = attrgetter(*(field.name for field in fields(StepArrays)))
NO_CHUNK = np.empty(0, dtype=np.int32)
NO_CHUNK_ENDS = np.zeros(1, dtype=np.int32)


def build_step(
    segments: Sequence[TokenSpan],
    tokens: Sequence[int],
    logit_places: Sequence[int],
    steering_rows: NDArray[np.int64],
    rows: NDArray[np.int64],
    tables: Sequence[NDArray[np.int32]],
    block_size: int,
) -> StepArrays:
    """Build the arrays of a step. ``rows``: the segments' rows in the cache policy's ``tables``, possibly repeated."""
    ends = [s.end for s in segments]
    lengths = np.array(ends, dtype=np.int32)
    num_single = count_singles(segments)
    if num_single == len(segments):  # the most common steps, which must be fast
        positions, owners = lengths - np.int64(1), rows
        chunk_starts, chunk_counts, chunk_ends = NO_CHUNK, NO_CHUNK, NO_CHUNK_ENDS
    else:
        counts = np.array([s.num_tokens for s in segments], dtype=np.int32)
        positions, owners = np.concatenate([np.arange(s.start, s.end) for s in segments]), np.repeat(rows, counts)
        chunk_starts, chunk_counts = (lengths - counts)[num_single:], counts[num_single:]
        chunk_ends = np.append(0, chunk_counts).cumsum(dtype=np.int32)
    blocks, offsets = np.divmod(positions, block_size)
    width = -(-max(ends) // block_size)
    is_paged = tables[0].shape[1] > 1
    begins = () if is_paged else tuple(np.append(t[rows, 0] * block_size, 0).astype(np.int32) for t in tables)
    return StepArrays(
        tokens=np.asarray(tokens, dtype=np.int64),
        positions=positions,
        logit_places=np.asarray(logit_places, dtype=np.int64),
        steering_rows=steering_rows,
        slots=tuple(table[owners, blocks] * np.int64(block_size) + offsets for table in tables),
        tables=tuple(table[rows, :width] for table in tables),
        lengths=lengths,
        single_ends=np.arange(num_single + 1, dtype=np.int32),
        chunk_ends=chunk_ends,
        chunk_starts=chunk_starts,
        chunk_counts=chunk_counts,
        starts=begins,
    )


def differ_only_in_tokens(one: StepArrays, other: StepArrays) -> bool:
    """Return whether two steps run the same sequences at the same places."""
    ours, theirs = replace(one, tokens=other.tokens).flat(), other.flat()
    return len(ours) == len(theirs) and all(map(np.array_equal, ours, theirs))


def count_singles(segments: Sequence[TokenSpan]) -> int:
    """Return the number of leading segments with one token."""
    return next((i for i, s in enumerate(segments) if s.num_tokens > 1), len(segments))


def padded(step: StepArrays, num_rows: int, width: int) -> StepArrays:
    """Pad a step of single tokens to ``num_rows`` by repeating the last token, and its tables to ``width``.

    A repeated token computes the same and writes the same keys and values to the same place.
    """

    chosen = np.minimum(np.arange(num_rows), len(step.tokens) - 1)

    def longer(array: NDArray[Any]) -> NDArray[Any]:
        return array[chosen]

    def larger(table: NDArray[np.int32]) -> NDArray[np.int32]:
        wider = np.zeros((num_rows, width), dtype=table.dtype)
        shared = min(width, table.shape[1])
        wider[:, :shared] = table[chosen, :shared]
        return wider

    return replace(
        step,
        tokens=longer(step.tokens),
        positions=longer(step.positions),
        logit_places=np.arange(num_rows),
        steering_rows=longer(step.steering_rows),
        slots=tuple(map(longer, step.slots)),
        tables=tuple(map(larger, step.tables)),
        lengths=longer(step.lengths),
        single_ends=np.arange(num_rows + 1, dtype=np.int32),
        starts=tuple(np.append(longer(s[:-1]), 0).astype(np.int32) for s in step.starts),
    )


def padded_chunks(
    step: StepArrays, num_tokens: int, num_segments: int, width: int, spare_blocks: Sequence[int], block_size: int
) -> StepArrays:
    """Pad a step of a paged cache to ``num_tokens`` tokens and ``num_segments`` segments, and its tables to ``width``.

    All segments are chunks then, also those of one token. The tokens that fill up are a segment of their own, which is
    written to a spare block of each layer group. Further segments are empty.
    """
    count, real, last = len(step.tokens), len(step.lengths), len(step.logit_places) - 1
    more = np.arange(num_tokens - count)

    def table(of: NDArray[np.int32], spare: int) -> NDArray[np.int32]:
        wider = np.zeros((num_segments, width), dtype=of.dtype)
        wider[:real, : of.shape[1]] = of
        wider[real] = spare
        return wider

    lengths = np.zeros(num_segments, dtype=np.int32)
    lengths[:real], lengths[real] = step.lengths, len(more)
    ends = np.full(num_segments + 1, num_tokens, dtype=np.int32)
    ends[: len(step.single_ends)] = step.single_ends
    ends[len(step.single_ends) : real + 1] = step.single_ends[-1] + step.chunk_ends[1:]
    return replace(
        step,
        tokens=np.append(step.tokens, np.zeros_like(more)),
        positions=np.append(step.positions, np.zeros_like(more)),
        logit_places=step.logit_places[np.minimum(np.arange(num_segments), last)],
        steering_rows=np.append(step.steering_rows, np.zeros_like(more)),
        slots=tuple(
            np.append(slots, spare * block_size + more % block_size)
            for slots, spare in zip(step.slots, spare_blocks, strict=True)
        ),
        tables=tuple(map(table, step.tables, spare_blocks)),
        lengths=lengths,
        single_ends=NO_CHUNK_ENDS,
        chunk_ends=ends,
        chunk_starts=NO_CHUNK,
        chunk_counts=NO_CHUNK,
    )


@dataclass(frozen=True, slots=True)
class StepTensors:
    """The arrays of a step on its device."""

    tokens: Tensor
    positions: Tensor
    logit_places: Tensor
    steering_rows: Tensor
    slots: tuple[Tensor, ...]
    tables: tuple[Tensor, ...]
    lengths: Tensor
    single_ends: Tensor
    chunk_ends: Tensor
    chunk_starts: Tensor
    chunk_counts: Tensor
    starts: tuple[Tensor, ...]

    @classmethod
    def of(cls, flat: Sequence[Tensor], like: StepArrays) -> StepTensors:
        rest = iter(flat)
        taken: list[Any] = []
        for value in _values(like):
            taken.append(tuple(next(rest) for _ in value) if isinstance(value, tuple) else next(rest))
        return cls(*taken)

    def batch(
        self,
        segments: tuple[TokenSpan, ...],
        pool: KVPool,
        varlen: VarlenStep | None,
        *,
        batch_invariant: bool = False,
        outputs_only: bool = False,
    ) -> PackedBatch:
        """Return the batch. ``outputs_only``: nobody uses the last layer's output elsewhere than at logit places."""
        num_single = len(self.single_ends) - 1
        saves_work = len(self.logit_places) <= MOST_NEEDED * len(self.tokens)
        return PackedBatch(
            segments=segments,
            num_single=num_single,
            lengths=self.lengths if num_single == len(segments) else self.lengths[:num_single],
            starts=self.chunk_starts,
            counts=self.chunk_counts,
            places=tuple(GroupPlaces(s, t) for s, t in zip(self.slots, self.tables, strict=True)),
            pool=pool,
            varlen=varlen,
            batch_invariant=batch_invariant,
            outputs=self.logit_places if outputs_only and saves_work else None,
        )

    def varlen(self, attention: VarlenAttention, segments: Sequence[TokenSpan], max_keys: int = 0) -> VarlenStep:
        """Return one call for single tokens and one for chunks. ``max_keys`` 0: the longest segment of each."""
        first = len(self.single_ends) - 1
        parts = []
        for chosen, ends in ((slice(0, first), self.single_ends), (slice(first, len(segments)), self.chunk_ends)):
            mine = segments[chosen]
            if not mine:
                continue
            counts = tuple(s.num_tokens for s in mine)
            begin = chosen.start
            tokens = slice(begin, begin + sum(counts))  # a single segment has one token
            longest = max_keys or max(s.end for s in mine)
            parts.append(AttentionCall(tokens, chosen, ends, self.lengths[chosen], counts, longest))
        starts: tuple[Tensor | None, ...] = self.starts or (None,) * len(self.tables)
        return VarlenStep(attention, tuple(parts), self.tables, starts)

    def varlen_of_any(self, attention: VarlenAttention, max_keys: int) -> VarlenStep:
        """Return one call for chunks of any lengths: see :func:`padded_chunks`."""
        num_tokens, num_segments = len(self.tokens), len(self.lengths)
        longest = (num_tokens,) * num_segments
        call = AttentionCall(
            slice(0, num_tokens), slice(0, num_segments), self.chunk_ends, self.lengths, longest, max_keys
        )
        return VarlenStep(attention, (call,), self.tables, (None,) * len(self.tables))


class StaticStep:
    """Tensors for steps of one shape at fixed addresses, for CUDA graphs."""

    def __init__(self, like: StepArrays, device: torch.device) -> None:
        self._buffer = torch.zeros(_total(like.flat()), dtype=torch.uint8, device=device)
        self.tensors = StepTensors.of(_views(self._buffer, like.flat()), like)

    def fill(self, step: StepArrays) -> None:
        """Copy the values of another step of the same shape."""
        self._buffer.copy_(_packed(step.flat(), self._buffer.device), non_blocking=True)


def step_tensors(step: StepArrays, device: torch.device) -> StepTensors:
    """Return the arrays as tensors: without a copy on the CPU, elsewhere views of one asynchronously copied tensor."""
    if device.type == "cpu":
        return StepTensors.of([torch.from_numpy(array) for array in step.flat()], step)
    copy = _packed(step.flat(), device).to(device, non_blocking=True)
    return StepTensors.of(_views(copy, step.flat()), step)


def _packed(arrays: Sequence[NDArray[Any]], device: torch.device) -> Tensor:
    """Return a byte tensor on the host, pinned for a CUDA device. torch does not reuse pinned memory before the copy is
    complete.
    """
    packed = torch.empty(_total(arrays), dtype=torch.uint8, pin_memory=device.type == "cuda")
    octets, first = packed.numpy(), 0
    for array in arrays:
        octets[first : first + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        first += _room(array)
    return packed


def _views(packed: Tensor, arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
    views, first = [], 0
    for array in arrays:
        dtype = torch.from_numpy(array[:0]).dtype
        views.append(packed[first : first + array.nbytes].view(dtype).view(array.shape))
        first += _room(array)
    return views


def _total(arrays: Sequence[NDArray[Any]]) -> int:
    return sum(map(_room, arrays))


def _room(array: NDArray[Any]) -> int:
    return -(-array.nbytes // ALIGNMENT) * ALIGNMENT
