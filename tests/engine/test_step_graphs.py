"""Graphs of steps, with an act that is done again in the place of a captured one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.engine.kernels.attention import TokenSpan
from inference.engine.kernels.step_graphs import SEEN_BEFORE, Shape, StepGraphs, padded_rows, token_counts
from inference.engine.kernels.step_inputs import StepArrays, StepTensors, build_step, padded_chunks

CPU = torch.device("cpu")
VOCAB, BLOCK = 7, 32
TABLE = np.arange(12 * 40, dtype=np.int32).reshape(12, 40)


def step_of(*lengths: int, chunk: int = 0, steered: bool = False, num_places: int | None = None) -> StepArrays:
    segments = [TokenSpan(length - 1, 1) for length in lengths] + ([TokenSpan(0, chunk)] if chunk else [])
    count = sum(s.num_tokens for s in segments)
    tokens = [100 + sum(lengths) + i for i in range(count)]
    rows = np.arange(len(segments))
    places = list(range(count if num_places is None else num_places))
    return build_step(segments, tokens, places, np.full(count, int(steered)), rows, (TABLE,), BLOCK)


def forward(tensors: StepTensors, shape: Shape) -> Tensor:
    """Logits that tell each row's inputs."""
    assert len(tensors.tokens) == shape.rows
    assert tensors.tables[0].shape == (shape.rows, -(-shape.keys // BLOCK))
    facts = [tensors.tokens, tensors.positions, tensors.slots[0], tensors.lengths, tensors.steering_rows]
    return torch.stack([*facts, tensors.tables[0][:, 0], tensors.tables[0].sum(1)], 1).float()


def expected(step: StepArrays, width: int) -> list[list[float]]:
    tables = np.pad(step.tables[0], ((0, 0), (0, width)))[:, :width]
    facts = [step.tokens, step.positions, step.slots[0], step.lengths, step.steering_rows, tables[:, 0], tables.sum(1)]
    return np.stack(facts, 1).astype(float).tolist()


class Recorder:
    """Captures by remembering the act."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, act: Callable[[], None]) -> Callable[[], object]:
        self.captured += 1
        act()

        def replay() -> None:
            self.replayed += 1
            act()

        return replay


@pytest.fixture
def capture() -> Recorder:
    return Recorder()


@pytest.fixture
def graphs(capture) -> StepGraphs:
    return made(capture)


def made(capture, forward=forward, **options: Any) -> StepGraphs:
    sizes = {"max_rows": 12, "block_size": BLOCK, "max_keys": TABLE.shape[1] * BLOCK}
    return StepGraphs(forward, capture, CPU, **(sizes | options))


def warm(graphs: StepGraphs, step: StepArrays, steering: object = None) -> None:
    for _ in range(SEEN_BEFORE):
        assert graphs.run(step, steering) is None


def test_a_shape_that_repeats_is_captured_and_replayed_with_new_inputs(graphs, capture):
    warm(graphs, step_of(5, 300, 40))
    for lengths in ((5, 300, 40), (6, 301, 41), (400, 3, 3), (9, 9, 500, 2)):
        step = step_of(*lengths)
        logits = graphs.run(step)
        assert logits is not None
        assert logits.tolist() == expected(step, 512 // BLOCK)
    assert (capture.captured, graphs.num_captured) == (1, 1)
    assert capture.replayed == 5, "one of them is the comparison"


def test_other_sizes_are_other_graphs(graphs):
    steps = [step_of(5), step_of(5, 6), step_of(5, 6, 7, 8, 9), step_of(5, 300), step_of(5, 1250)]
    for step in steps:
        warm(graphs, step)
        assert graphs.run(step) is not None
    assert graphs.num_captured == 5


@pytest.mark.parametrize("step", [step_of(5, 6, chunk=3), step_of(5, 6, num_places=1), step_of(chunk=2)])
def test_a_step_that_does_more_than_decode_is_run_without(graphs, step):
    assert [graphs.run(step) for _ in range(SEEN_BEFORE + 2)] == [None] * (SEEN_BEFORE + 2)


def test_rows_of_one_sequence_are_rows_like_others(graphs):
    """As drafts are: each sees one token more, and writes to its own place."""
    step = rows_of([2, 2, 2, 5], (40, 41, 42, 9))
    warm(graphs, step)
    logits = graphs.run(step)
    assert logits is not None
    assert logits.tolist() == expected(step, 256 // BLOCK)


def test_a_step_of_more_rows_than_there_is_room_for_is_run_without(graphs, capture):
    step = rows_of([2] * 17, tuple(range(20, 37)))
    assert [graphs.run(step) for _ in range(SEEN_BEFORE + 2)] == [None] * (SEEN_BEFORE + 2)
    assert (capture.captured, str(graphs)) == (0, "0 captured")


def rows_of(rows: list[int], lengths: tuple[int, ...]) -> StepArrays:
    segments = [TokenSpan(length - 1, 1) for length in lengths]
    places = list(range(len(rows)))
    return build_step(segments, places, places, np.zeros(len(rows), dtype=np.int64), np.array(rows), (TABLE,), BLOCK)


def test_keys_are_rounded_up_to_what_the_tables_hold(graphs):
    assert graphs.shape_of(step_of(1), None) == Shape(1, 256, 8, None)
    assert graphs.shape_of(step_of(257, 1, 1), None) == Shape(4, 512, 16, None)
    assert graphs.shape_of(step_of(1100), "t") == Shape(1, 1280, 40, "t")


# Prompts

SPARE, MAX_TOKENS = 500, 100


def facts_of(tensors: StepTensors, shape: Shape) -> Tensor:
    """Logits that tell each place's token, segment, keys and tables."""
    assert len(tensors.tokens) == shape.rows
    ends = tensors.chunk_ends
    assert [int(ends[0]), int(ends[-1]), len(ends)] == [0, shape.rows, shape.segments + 1]
    owners = torch.searchsorted(ends, tensors.logit_places.int(), right=True) - 1
    keys = tensors.lengths[owners] - (ends[owners + 1] - 1 - tensors.logit_places)
    facts = [tensors.tokens, tensors.positions, tensors.slots[0], tensors.steering_rows]
    at_places = [fact[tensors.logit_places] for fact in facts]
    return torch.stack([*at_places, keys, tensors.tables[0][owners].sum(1)], 1).float()


@pytest.fixture
def with_prompts(capture) -> StepGraphs:
    return made(capture, facts_of, max_prompt_tokens=MAX_TOKENS, spare_blocks=(SPARE,))


def mixed_step(singles: tuple[int, ...], chunks: tuple[tuple[int, int], ...]) -> StepArrays:
    """Single tokens at ``singles``, and chunks ``(start, tokens)``. The last token of each is sampled."""
    segments = [TokenSpan(start, 1) for start in singles] + [TokenSpan(*chunk) for chunk in chunks]
    counts = [segment.num_tokens for segment in segments]
    places = [sum(counts[: i + 1]) - 1 for i in range(len(counts))]
    steered = np.arange(sum(counts)) % 3
    return build_step(segments, range(sum(counts)), places, steered, np.arange(len(counts)), (TABLE,), BLOCK)


@pytest.mark.parametrize(
    ("singles", "chunks"),
    [((), ((0, 40),)), ((5, 700), ((3, 2), (40, 20))), ((9,), ((0, 99),)), ((), ((70, 33), (0, 2), (5, 6)))],
)
def test_a_step_with_prompts_is_replayed_for_other_prompts(with_prompts, singles, chunks):
    """Each place sees its own token, its own keys and its own blocks, and what fills up lies in the spare block."""
    step = mixed_step(singles, chunks)
    warm(with_prompts, step)
    logits = with_prompts.run(step)
    assert logits is not None
    assert with_prompts.num_with_prompts == 1
    owners = range(len(step.lengths))
    for found, place, owner in zip(logits.tolist(), step.logit_places, owners, strict=True):
        facts = (step.tokens, step.positions, step.slots[0], step.steering_rows)
        own = [int(fact[place]) for fact in facts]
        assert found[:4] == own
        assert found[4:6] == [step.positions[place] + 1, step.tables[0][owner].sum()]


def test_what_fills_up_is_written_to_the_spare_block():
    step = padded_chunks(mixed_step((5,), ((0, 9),)), 100, 8, 40, (SPARE,), BLOCK)
    assert step.slots[0][10:].tolist() == [SPARE * BLOCK + i % BLOCK for i in range(90)]
    assert step.chunk_ends.tolist() == [0, 1, 10, *[100] * 6]
    assert step.lengths.tolist() == [6, 9, 90, *[0] * 5]
    assert set(step.tables[0][2].tolist()) == {SPARE}
    assert not step.steering_rows[10:].any()


def test_steps_with_more_tokens_or_places_than_there_is_room_for_have_no_graph(with_prompts):
    assert with_prompts.shape_of(mixed_step((), ((0, MAX_TOKENS),)), None) is not None
    assert with_prompts.shape_of(mixed_step((), ((0, MAX_TOKENS + 1),)), None) is None
    assert with_prompts.shape_of(step_of(5, chunk=60, num_places=61), None) is None


def test_numbers_of_tokens_are_rounded_up_to_few():
    assert token_counts(100) == [32, 48, 64, 96, 100]
    assert token_counts(20) == [20]
    assert token_counts(0) == []
    assert token_counts(100_000)[-3:] == [4096, 6144, 8192]


def test_prompts_that_cannot_be_captured_leave_shorter_ones_and_decoding(capture, caplog):
    def limited(tensors: StepTensors, shape: Shape) -> Tensor:
        if shape.rows > 64:
            raise RuntimeError("CUDA error: out of memory")
        return facts_of(tensors, shape) if shape.segments else forward(tensors, shape)[:, :6]

    graphs = made(capture, limited, max_rows=4, max_prompt_tokens=MAX_TOKENS, spare_blocks=(SPARE,))
    graphs.prepare([step_of(1)])
    assert graphs.num_with_prompts == 3, "32, 48 and 64 tokens"
    assert graphs.num_captured == 4
    assert graphs.shape_of(mixed_step((), ((0, 70),)), None) is None
    assert "out of memory" in caplog.text


def test_rows_are_rounded_up():
    assert [padded_rows(n) for n in (1, 2, 3, 4, 5, 8, 9, 64)] == [1, 2, 4, 4, 8, 8, 16, 64]


def test_new_tables_take_the_place_of_old_ones(graphs, capture):
    step = step_of(5, 6, steered=True)
    for key in ("old", "new"):
        warm(graphs, step, key)
        assert graphs.run(step, key) is not None
    plain = step_of(5, 6)
    warm(graphs, plain)
    assert graphs.run(plain) is not None
    assert (capture.captured, graphs.num_captured) == (3, 2)


def test_steering_that_cannot_be_captured_turns_only_its_own_graphs_off(capture, caplog):
    def picky(tensors: StepTensors, shape: Shape) -> Tensor:
        if tensors.steering_rows.any() and is_broken:
            raise RuntimeError("an SAE asks the device")
        return forward(tensors, shape)

    is_broken, graphs, step = True, made(capture, picky), step_of(5, 6, steered=True)
    for _ in range(SEEN_BEFORE + 2):
        assert graphs.run(step, "bad") is None
    assert "an SAE asks the device" in caplog.text
    plain = step_of(5, 6)
    warm(graphs, plain)
    assert graphs.run(plain) is not None
    is_broken = False
    assert graphs.run(step, "bad") is None, "it is not tried again"
    warm(graphs, step, "other")
    assert graphs.run(step, "other") is not None
    assert str(graphs) == "2 captured"


def test_steered_prompts_that_cannot_be_captured_leave_steered_decoding(capture, caplog):
    def limited(tensors: StepTensors, shape: Shape) -> Tensor:
        if shape.steering is not None and shape.rows > 32:
            raise RuntimeError("CUDA error: out of memory")
        return facts_of(tensors, shape) if shape.segments else forward(tensors, shape)[:, :6]

    graphs = made(capture, limited, max_rows=4, max_prompt_tokens=64, spare_blocks=(SPARE,))
    graphs.prepare([step_of(1)])
    assert graphs.num_with_prompts == 3, "32, 48 and 64 tokens"
    prepared = 0
    while graphs.prepare_next([step_of(1)], "tables"):
        prepared += 1
    assert prepared == 4, "one row, 64 and 48 tokens in vain, 32 tokens"
    assert graphs.num_captured == 6
    assert graphs.shape_of(mixed_step((), ((0, 40),)), "tables") is None
    assert graphs.shape_of(mixed_step((), ((0, 40),)), None) is not None
    assert "Steered steps with 64 tokens" in caplog.text
    assert graphs.prepare_next([step_of(1)], "other tables"), "they are tried again"


def test_what_cannot_be_captured_turns_graphs_off_and_says_why(caplog):
    def refuse(act):
        raise RuntimeError("operation not permitted when stream is capturing\nand so on")

    graphs = made(refuse)
    step = step_of(5)
    warm(graphs, step)
    assert graphs.run(step) is None
    assert str(graphs) == "off: operation not permitted when stream is capturing"
    assert "CUDA graphs are off" in caplog.text
    assert graphs.run(step) is None


@pytest.mark.parametrize("broken", [lambda act: lambda: None, lambda act: act])
def test_a_graph_that_says_something_else_is_not_used(broken):
    calls = 0

    def drifting(tensors: StepTensors, shape: Shape) -> Tensor:
        nonlocal calls
        calls += 1
        return forward(tensors, shape) * calls

    graphs = made(broken, drifting)
    step = step_of(5)
    warm(graphs, step)
    assert graphs.run(step) is None
    assert "differs" in str(graphs)


def test_logits_that_are_no_numbers_are_no_reason(capture):
    def poisoned(tensors: StepTensors, shape: Shape) -> Tensor:
        return torch.cat([forward(tensors, shape)[:1] * float("nan"), forward(tensors, shape)[1:]])

    graphs = made(capture, poisoned)
    step = step_of(5, 6)
    warm(graphs, step)
    logits = graphs.run(step)
    assert logits is not None
    assert torch.isnan(logits[0]).all()
    assert logits[1].tolist() == expected(step, 8)[1]


def test_closing_lets_go_of_all(graphs):
    warm(graphs, step_of(5))
    graphs.run(step_of(5))
    graphs.close()
    assert graphs.num_captured == 0
