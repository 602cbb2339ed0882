"""Decode steps as CUDA graphs: one launch instead of a thousand.

A graph is captured for a number of rows and of keys, both rounded up: when the model is attached, or after a few steps
of that shape. A step that fits copies its inputs to the graph's input tensors and replays it. The result of a captured
step is compared with that of the same step without capture. After any failure, steps run without graphs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.kernels.step_inputs import StaticStep, StepArrays, StepTensors, padded

logger = logging.getLogger(__name__)

SEEN_BEFORE = 2  # steps of a shape before capture: a graph is not worthwhile for a shape that occurs once
MIN_KEYS, KEYS_FACTOR = 256, 2  # numbers of keys are rounded up to MIN_KEYS times a power of the factor
FEW_KEYS, FEW_KEYS_FACTOR = 1024, 4  # for attention whose cost does not depend on the rounded number
TOLERANCE = 2e-2  # of the largest logit

Forward = Callable[[StepTensors, int, int], Tensor]  # inputs, rows, keys -> logits [rows, vocab]
Capture = Callable[
    [Callable[[], None]], Callable[[], object]
]  # runs a function once, and returns a function that replays it


@dataclass(frozen=True, slots=True)
class Shape:
    """The key of a graph. ``steering`` is None if no token of the step is steered."""

    rows: int
    keys: int
    width: int
    steering: Hashable | None


@dataclass(frozen=True, slots=True)
class _Captured:
    inputs: StaticStep
    replay: Callable[[], object]


class DecodeGraphs:
    """The graphs of one model, for up to ``max_rows`` sequences. ``max_keys``: the capacity of a row of its block
    tables, in tokens. ``counts_keys``: whether the cost of attention depends on the rounded number of keys.
    """

    def __init__(
        self,
        forward: Forward,
        capture: Capture,
        device: torch.device,
        *,
        max_rows: int,
        block_size: int,
        max_keys: int,
        counts_keys: bool = True,
    ) -> None:
        self._forward = forward
        self._capture = capture
        self._device = device
        self._max_rows = padded_rows(max_rows)
        self._block_size = block_size
        self._max_keys = max_keys
        self._keys = (MIN_KEYS, KEYS_FACTOR) if counts_keys else (FEW_KEYS, FEW_KEYS_FACTOR)
        self._seen: Counter[Shape] = Counter()
        self._captured: dict[Shape, _Captured] = {}
        self._steering: Hashable | None = None  # the steering tables that the graphs read
        self._refused: Hashable | None = None  # steering tables with which no step can be captured
        self._logits = torch.empty(0)  # written by all graphs
        self._results: list[Tensor] = []  # of the last two steps
        self._problem = ""

    def __str__(self) -> str:
        return f"off: {self._problem}" if self._problem else f"{len(self._captured)} captured"

    @property
    def num_captured(self) -> int:
        return len(self._captured)

    @property
    def widest(self) -> int:
        """The number of rows of the largest captured step."""
        return max((shape.rows for shape in self._captured), default=0)

    def prepare(self, steps: Iterable[StepArrays]) -> None:
        """Capture the shapes of these steps, before there is traffic to hold up."""
        for step in steps:
            shape = self.shape_of(step, None)
            if not self._problem and shape not in self._captured:
                self._capture_shape(shape, step)

    def run(self, step: StepArrays, steering: Hashable | None = None, tokens: Tensor | None = None) -> Tensor | None:
        """Return ``[rows, vocab]`` logits of a step of single tokens, valid until the step after the next; None if it
        must run without a graph.

        ``steering`` identifies the tables that the hooks read: other tables need another graph. ``tokens`` ``[rows]``
        on the device replace those of the step, and nothing is captured.
        """
        if self._problem or not len(step.lengths) == len(step.logit_places) == len(step.tokens) <= self._max_rows:
            return None
        if steering is not None and steering == self._refused:
            return None
        shape = self.shape_of(step, steering)
        captured = self._captured.get(shape)
        if captured is None and tokens is None:
            captured = self._capture_if_seen(shape, step)
        if captured is None:
            return None
        captured.inputs.fill(padded(step, shape.rows, shape.width))
        rows = len(step.tokens)
        if tokens is not None:
            target = captured.inputs.tensors.tokens
            target[:rows] = tokens
            target[rows:] = tokens[-1:]
        captured.replay()
        self._results.reverse()
        return self._results[0][:rows].copy_(self._logits[:rows])

    def shape_of(self, step: StepArrays, steering: Hashable | None) -> Shape:
        keys, factor = self._keys
        longest = int(step.lengths.max())
        while keys < longest:
            keys *= factor
        keys = min(keys, self._max_keys)
        return Shape(padded_rows(len(step.tokens)), keys, -(-keys // self._block_size), steering)

    def close(self) -> None:
        """Release the graphs and their memory."""
        self._captured.clear()
        self._logits = torch.empty(0)
        self._results.clear()

    def _capture_if_seen(self, shape: Shape, step: StepArrays) -> _Captured | None:
        self._forget_other_tables(shape.steering)
        self._seen[shape] += 1
        if self._seen[shape] <= SEEN_BEFORE:
            return None
        return self._capture_shape(shape, step)

    def _capture_shape(self, shape: Shape, step: StepArrays) -> _Captured | None:
        try:
            self._captured[shape] = captured = self._captured_step(shape, step)
        except RuntimeError as error:  # includes CUDA errors of operations that cannot be captured
            self._disable(shape.steering, str(error).strip().partition("\n")[0])
            return None
        return captured

    def _captured_step(self, shape: Shape, step: StepArrays) -> _Captured:
        full = padded(step, shape.rows, shape.width)
        inputs = StaticStep(full, self._device)
        inputs.fill(full)
        expected = self._forward(inputs.tensors, shape.rows, shape.keys)
        if not len(self._logits):  # shared by all graphs, so that none keeps its own logits
            self._logits = expected.new_empty(self._max_rows, expected.shape[1])
            self._results = [torch.empty_like(self._logits) for _ in range(2)]
        out = self._logits[: shape.rows]

        def act() -> None:
            out.copy_(self._forward(inputs.tensors, shape.rows, shape.keys))

        replay = self._capture(act)
        out.zero_()
        replay()
        worst = (out.nan_to_num() - expected.nan_to_num()).abs().max()
        if not bool(worst <= TOLERANCE * expected.nan_to_num().abs().max()):
            raise RuntimeError(f"a captured step differs by {float(worst):.2g} from the same step uncaptured")
        return _Captured(inputs, replay)

    def _forget_other_tables(self, steering: Hashable | None) -> None:
        """Drop graphs of steering tables that no longer exist."""
        if steering in {None, self._steering}:
            return
        self._steering = steering
        for shape in [s for s in self._seen if s.steering not in {None, steering}]:
            del self._seen[shape]
            self._captured.pop(shape, None)

    def _disable(self, steering: Hashable | None, problem: str) -> None:
        """Turn off all graphs, or those of steered steps if an SAE may have caused the failure."""
        if steering is None:
            self._problem = problem
            self.close()
            logger.warning("CUDA graphs are off for this model: %s", problem)
            return
        self._refused = steering
        for shape in [s for s in self._captured if s.steering == steering]:
            del self._captured[shape]
        logger.warning("Steered steps run without CUDA graphs until the profiles change: %s", problem)


def padded_rows(count: int) -> int:
    """Round up to 1, 2, 4, a multiple of 8, or beyond 64 a multiple of 32."""
    grain = 8 if count <= 64 else 32
    return _power_of_two(count) if count <= 4 else -(-count // grain) * grain


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


class CudaCapture:
    """Captures on its own stream, into memory that all graphs share: they never run at the same time, and the result of
    one is read before the next starts.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, act: Callable[[], None]) -> Callable[[], object]:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                act()  # what a stream creates on first use must be created outside of the graph
            # Only calls of this thread matter: another one may be loading a model.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                act()
        finally:
            torch.cuda.set_stream(current)  # a failed capture leaves its own stream set
        current.wait_stream(self._stream)
        return graph.replay
