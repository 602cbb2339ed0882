"""What a step reads, on the host and in one copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from inference.engine.kernels.attention import TokenSpan
from inference.engine.kernels.step_inputs import StaticStep, StepArrays, build_step, padded, step_tensors
from inference.engine.kernels.varlen_attention import VarlenAttention

CPU = torch.device("cpu")
SEGMENTS = (TokenSpan(10, 1), TokenSpan(70, 1), TokenSpan(0, 5), TokenSpan(30, 3))
ROWS = [2, 0, 3, 1]
TABLE = np.arange(4 * 6, dtype=np.int32).reshape(4, 6) + 100
ATTENTION = VarlenAttention(None, "here")


def build(segments=SEGMENTS, rows=ROWS, tables=(TABLE, TABLE + 50), block_size=16) -> StepArrays:
    tokens = list(range(sum(s.num_tokens for s in segments)))
    return build_step(segments, tokens, [0, 1], np.array(tokens) % 2, np.array(rows), tables, block_size)


def test_places_are_what_the_tables_say():
    step = build()
    positions = [p for s in SEGMENTS for p in range(s.start, s.end)]
    owners = [row for row, s in zip(ROWS, SEGMENTS, strict=True) for _ in range(s.num_tokens)]
    assert step.positions.tolist() == positions
    for table, slots in zip((TABLE, TABLE + 50), step.slots, strict=True):
        expected = [int(table[row, p // 16]) * 16 + p % 16 for row, p in zip(owners, positions, strict=True)]
        assert slots.tolist() == expected
    assert step.tables[0].tolist() == TABLE[ROWS, :5].tolist(), "as many blocks as the longest sequence has"
    assert step.lengths.tolist() == [11, 71, 5, 33]
    assert step.single_ends.tolist() == [0, 1, 2]
    assert step.chunk_ends.tolist() == [0, 5, 8]
    assert (step.chunk_starts.tolist(), step.chunk_counts.tolist()) == ([0, 30], [5, 3])
    assert step.starts == ()


def test_single_tokens_may_follow_each_other_in_one_sequence():
    step = build([TokenSpan(14, 1), TokenSpan(15, 1), TokenSpan(16, 1), TokenSpan(3, 1)], [2, 2, 2, 0])
    (first, second), other = TABLE[2, :2].tolist(), int(TABLE[0, 0])
    assert step.slots[0].tolist() == [first * 16 + 14, first * 16 + 15, second * 16, other * 16 + 3]
    assert step.tables[0].tolist() == [[first, second]] * 3 + [TABLE[0, :2].tolist()]
    assert step.lengths.tolist() == [15, 16, 17, 4]
    assert step.slots[0].dtype == step.positions.dtype == np.int64
    assert [len(part) for part in (step.chunk_starts, step.chunk_counts)] == [0, 0]


def test_a_packed_batch_is_what_the_arrays_say():
    tensors = step_tensors(build(), CPU)
    batch = tensors.batch(SEGMENTS, None, None)
    assert (batch.num_single, batch.lengths.tolist()) == (2, [11, 71])
    assert (batch.starts.tolist(), batch.counts.tolist()) == ([0, 30], [5, 3])
    assert {t.dtype for t in (batch.lengths, batch.starts, batch.counts)} == {torch.int32}
    singles = step_tensors(build(SEGMENTS[:2], ROWS[:2]), CPU).batch(SEGMENTS[:2], None, None)
    assert (singles.num_single, singles.lengths.tolist(), singles.starts.tolist()) == (2, [11, 71], [])


def test_a_sequence_in_one_block_begins_where_the_block_does():
    table = np.array([[7], [5], [6], [4]], dtype=np.int32)
    step = build(tables=(table,), block_size=128)
    assert step.starts[0].tolist() == [6 * 128, 7 * 128, 4 * 128, 5 * 128, 0]


def test_the_copy_holds_all_arrays_in_their_own_types():
    step = build()
    static = StaticStep(step, CPU)
    static.fill(step)
    assert_same(static, step)
    for other in (build(rows=[0, 1, 2, 3]), step):
        static.fill(other)
        assert_same(static, other)


def assert_same(static: StaticStep, step: StepArrays) -> None:
    for got, array in zip(flat(static.tensors), step.flat(), strict=True):
        assert got.dtype == torch.from_numpy(array).dtype
        assert got.is_contiguous()
        assert got.data_ptr() % 16 == 0
        assert got.tolist() == array.tolist()


def flat(tensors: Any) -> list[torch.Tensor]:
    values = [getattr(tensors, name) for name in tensors.__dataclass_fields__]
    return [t for value in values for t in (value if isinstance(value, tuple) else (value,))]


def test_parts_are_the_singles_and_the_chunks():
    step = step_tensors(build(), CPU)
    singles, chunks = step.varlen(ATTENTION, SEGMENTS).parts
    assert (singles.tokens, singles.segments, singles.num_queries) == (slice(0, 2), slice(0, 2), (1, 1))
    assert (chunks.tokens, chunks.segments, chunks.num_queries) == (slice(2, 10), slice(2, 4), (5, 3))
    assert (singles.max_keys, chunks.max_keys) == (71, 33)
    assert (singles.lengths.tolist(), chunks.lengths.tolist()) == ([11, 71], [5, 33])
    assert chunks.ends.tolist() == [0, 5, 8]


@pytest.mark.parametrize("segments", [SEGMENTS[:2], SEGMENTS[2:]])
def test_a_step_of_one_kind_has_one_part(segments):
    step = step_tensors(build(segments, ROWS[:2]), CPU)
    (part,) = step.varlen(ATTENTION, segments).parts
    assert part.tokens == slice(0, sum(s.num_tokens for s in segments))


def test_padding_repeats_the_last_token_and_widens_the_tables():
    step = build(SEGMENTS[:2], ROWS[:2])
    full = padded(step, 4, 8)
    assert full.tokens.tolist() == [0, 1, 1, 1]
    assert full.slots[0].tolist() == [step.slots[0][0], *[step.slots[0][1]] * 3]
    assert full.lengths.tolist() == [11, 71, 71, 71]
    assert full.steering_rows.tolist() == [0, 1, 1, 1]
    assert full.logit_places.tolist() == [0, 1, 2, 3]
    assert full.single_ends.tolist() == [0, 1, 2, 3, 4]
    assert full.tables[1].shape == (4, 8)
    assert full.tables[1][3].tolist() == [*(TABLE[0, :5] + 50), 0, 0, 0]
    assert [a.dtype for a in full.flat()] == [a.dtype for a in step.flat()]


def test_padding_of_sequences_in_one_block_keeps_their_beginnings():
    table = np.array([[7], [5], [6], [4]], dtype=np.int32)
    step = padded(build(SEGMENTS[:2], ROWS[:2], (table,), 128), 4, 1)
    assert step.starts[0].tolist() == [6 * 128, 7 * 128, 7 * 128, 7 * 128, 0]
