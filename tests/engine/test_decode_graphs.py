"""Decode graphs, with an act that is done again in the place of a captured one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.engine.kernels.attention import TokenSpan
from inference.engine.kernels.decode_graphs import SEEN_BEFORE, DecodeGraphs, Shape, padded_rows
from inference.engine.kernels.step_inputs import StepArrays, StepTensors, build_step

CPU = torch.device("cpu")
VOCAB, BLOCK = 7, 32
TABLE = np.arange(12 * 40, dtype=np.int32).reshape(12, 40)


def step_of(*lengths: int, chunk: int = 0, steered: bool = False, wanted: int | None = None) -> StepArrays:
    segments = [TokenSpan(length - 1, 1) for length in lengths] + ([TokenSpan(0, chunk)] if chunk else [])
    count = sum(s.num_tokens for s in segments)
    tokens = [100 + sum(lengths) + i for i in range(count)]
    rows = np.arange(len(segments))
    places = list(range(count if wanted is None else wanted))
    return build_step(segments, tokens, places, np.full(count, int(steered)), rows, (TABLE,), BLOCK)


def forward(tensors: StepTensors, num_rows: int, max_keys: int) -> Tensor:
    """Logits that tell each row's inputs."""
    assert len(tensors.tokens) == num_rows
    assert tensors.tables[0].shape == (num_rows, -(-max_keys // BLOCK))
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
def graphs(capture) -> DecodeGraphs:
    return made(capture)


def made(capture, forward=forward) -> DecodeGraphs:
    return DecodeGraphs(forward, capture, CPU, max_rows=12, block_size=BLOCK, max_keys=TABLE.shape[1] * BLOCK)


def warm(graphs: DecodeGraphs, step: StepArrays, steering: object = None) -> None:
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


@pytest.mark.parametrize("step", [step_of(5, 6, chunk=3), step_of(5, 6, wanted=1), step_of(chunk=2)])
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
    def picky(tensors: StepTensors, num_rows: int, max_keys: int) -> Tensor:
        if tensors.steering_rows.any() and is_broken:
            raise RuntimeError("an SAE asks the device")
        return forward(tensors, num_rows, max_keys)

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

    def drifting(tensors: StepTensors, num_rows: int, max_keys: int) -> Tensor:
        nonlocal calls
        calls += 1
        return forward(tensors, num_rows, max_keys) * calls

    graphs = made(broken, drifting)
    step = step_of(5)
    warm(graphs, step)
    assert graphs.run(step) is None
    assert "differs" in str(graphs)


def test_logits_that_are_no_numbers_are_no_reason(capture):
    def poisoned(tensors: StepTensors, num_rows: int, max_keys: int) -> Tensor:
        return torch.cat(
            [forward(tensors, num_rows, max_keys)[:1] * float("nan"), forward(tensors, num_rows, max_keys)[1:]]
        )

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
