"""Steps as CUDA graphs: one launch instead of a thousand.

A graph of a step that decodes is captured for a number of rows and of keys, one of a step with prompts for a number of
tokens and of segments, all rounded up: when the model is attached, or after a few steps of that shape. A step that fits
copies its inputs to the graph's input tensors and replays it. The result of a captured step is compared with that of
the same step without capture. After any failure, steps run without graphs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.kernels.step_inputs import StaticStep, StepArrays, StepTensors, padded, padded_chunks

logger = logging.getLogger(__name__)

SEEN_BEFORE = 2  # steps of a shape before capture: a graph is not worthwhile for a shape that occurs once
MIN_KEYS, KEYS_FACTOR = 256, 2  # numbers of keys are rounded up to MIN_KEYS times a power of the factor
FEW_KEYS, FEW_KEYS_FACTOR = 1024, 4  # for attention whose cost does not depend on the rounded number
FEW_SEGMENTS = 8  # the number of segments of a step with prompts is rounded up to this, or to the largest
MIN_TOKENS, MAX_TOKENS = 32, 8192  # of steps with prompts; beyond, the device takes longer than the host
TOLERANCE = 2e-2  # of the largest logit

Capture = Callable[
    [Callable[[], None]], Callable[[], object]
]  # runs a function once, and returns a function that replays it


@dataclass(frozen=True, slots=True)
class Shape:
    """The key of a graph. ``rows``: the number of tokens. ``keys`` and ``width``: the most keys of a segment, and the
    blocks of them. ``steering`` is None if no token of the step is steered. ``segments``: 0 if all tokens are single.
    """

    rows: int
    keys: int
    width: int
    steering: Hashable | None
    segments: int = 0


Forward = Callable[[StepTensors, Shape], Tensor]  # inputs -> logits [logit places, vocab]


@dataclass(frozen=True, slots=True)
class _Captured:
    inputs: StaticStep
    replay: Callable[[], object]


class StepGraphs:
    """The graphs of one model, for up to ``max_rows`` sequences. ``max_keys``: the capacity of a row of its block
    tables, in tokens. ``counts_keys``: whether the cost of attention depends on the rounded number of keys.

    ``max_prompt_tokens``: the most tokens of a step with prompts that has a graph; 0: only steps that decode have one.
    ``spare_blocks``: by layer group, the block to which tokens are written that only fill up such a step.
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
        max_prompt_tokens: int = 0,
        spare_blocks: tuple[int, ...] = (),
    ) -> None:
        self._forward = forward
        self._capture = capture
        self._device = device
        self._max_rows = padded_rows(max_rows)
        self._max_segments = max(FEW_SEGMENTS, max_rows + 1) if max_prompt_tokens else 0
        self._prompt_tokens = token_counts(max_prompt_tokens)
        self._steered_tokens = self._prompt_tokens  # of steered steps with prompts
        self._spare_blocks = spare_blocks
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
        """The number of rows of the largest captured step that decodes."""
        return max((shape.rows for shape in self._captured if not shape.segments), default=0)

    @property
    def num_with_prompts(self) -> int:
        """The number of captured steps with prompts."""
        return sum(shape.segments > 0 for shape in self._captured)

    def prepare(self, steps: Sequence[StepArrays]) -> None:
        """Capture the shapes of these steps, and of prompts of all numbers of tokens, before there is traffic to hold
        up. The last step has one token.
        """
        while self.prepare_next(steps, None):
            pass

    def prepare_next(self, steps: Sequence[StepArrays], steering: Hashable | None) -> bool:
        """Capture one of these shapes, if one is missing; see :meth:`prepare`. Return whether one was."""
        if self._problem or (steering is not None and steering == self._refused):
            return False
        self._forget_other_tables(steering)
        for shape, step in self._shapes(steps, steering):
            if shape not in self._captured:
                self._capture_shape(shape, step)
                return True
        return False

    def _shapes(self, steps: Sequence[StepArrays], steering: Hashable | None) -> Iterator[tuple[Shape, StepArrays]]:
        for step in steps:
            shape = self.shape_of(step, steering)
            if shape is not None:
                yield shape, step
        for segments in dict.fromkeys((self._max_segments, FEW_SEGMENTS)):
            for count in reversed(self._tokens_of(steering)):
                yield self._prompt_shape(count, segments, steering), steps[-1]

    def run(self, step: StepArrays, steering: Hashable | None = None, tokens: Tensor | None = None) -> Tensor | None:
        """Return ``[logit places, vocab]`` logits of a step, valid until the step after the next; None if it must run
        without a graph.

        ``steering`` identifies the tables that the hooks read: other tables need another graph. ``tokens`` ``[rows]``
        on the device replace those of a step that decodes, and nothing is captured.
        """
        shape = None if self._problem else self.shape_of(step, steering)
        if shape is None or (steering is not None and steering == self._refused):
            return None
        captured = self._captured.get(shape)
        if captured is None and tokens is None:
            captured = self._capture_if_seen(shape, step)
        if captured is None:
            return None
        captured.inputs.fill(self._filled(step, shape))
        if tokens is not None:
            rows, target = len(step.tokens), captured.inputs.tensors.tokens
            target[:rows] = tokens
            if rows < len(target):
                target[rows:] = tokens[-1:]
        captured.replay()
        self._results.reverse()
        places = len(step.logit_places)
        return self._results[0][:places].copy_(self._logits[:places])

    def shape_of(self, step: StepArrays, steering: Hashable | None) -> Shape | None:
        """Return the shape of the step's graph; None if there is none for such steps."""
        count = len(step.tokens)
        if len(step.lengths) == len(step.logit_places) == count:
            if count > self._max_rows:
                return None
            keys = min(_rounded(int(step.lengths.max()), *self._keys), self._max_keys)
            return Shape(padded_rows(count), keys, self._width(keys), steering)
        needed = max(len(step.lengths) + 1, len(step.logit_places))  # one segment has the tokens that fill up
        segments = FEW_SEGMENTS if needed <= FEW_SEGMENTS else self._max_segments
        if step.starts or needed > segments:
            return None
        tokens = next((most for most in self._tokens_of(steering) if most >= count), 0)
        return self._prompt_shape(tokens, segments, steering) if tokens else None

    def _tokens_of(self, steering: Hashable | None) -> list[int]:
        return self._prompt_tokens if steering is None else self._steered_tokens

    def _prompt_shape(self, tokens: int, segments: int, steering: Hashable | None) -> Shape:
        width = self._width(max(self._max_keys, tokens))  # the tokens that fill up may be more than a sequence's
        return Shape(tokens, self._max_keys, width, steering, segments)

    def _width(self, keys: int) -> int:
        return -(-keys // self._block_size)

    def _filled(self, step: StepArrays, shape: Shape) -> StepArrays:
        if not shape.segments:
            return padded(step, shape.rows, shape.width)
        return padded_chunks(step, shape.rows, shape.segments, shape.width, self._spare_blocks, self._block_size)

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
            self._disable(shape, str(error).strip().partition("\n")[0])
            return None
        return captured

    def _captured_step(self, shape: Shape, step: StepArrays) -> _Captured:
        full = self._filled(step, shape)
        inputs = StaticStep(full, self._device)
        inputs.fill(full)
        expected = self._forward(inputs.tensors, shape)
        if not len(self._logits):  # shared by all graphs, so that none keeps its own logits
            self._logits = expected.new_empty(max(self._max_rows, self._max_segments), expected.shape[1])
            self._results = [torch.empty_like(self._logits) for _ in range(2)]
        out = self._logits[: len(expected)]

        def act() -> None:
            out.copy_(self._forward(inputs.tensors, shape))

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
        self._steering, self._steered_tokens = steering, self._prompt_tokens
        for shape in [s for s in self._seen if s.steering not in {None, steering}]:
            del self._seen[shape]
            self._captured.pop(shape, None)

    def _disable(self, failed: Shape, problem: str) -> None:
        """Turn off the graphs of prompts of as many tokens if prompts may have caused the failure, otherwise all graphs
        (those of steered steps, if an SAE may have).
        """
        if failed.segments:
            kind = "Steps" if failed.steering is None else "Steered steps"
            self._steered_tokens = [count for count in self._steered_tokens if count < failed.rows]
            if failed.steering is None:
                self._prompt_tokens = [count for count in self._prompt_tokens if count < failed.rows]
            logger.warning("%s with %d tokens and more run without CUDA graphs: %s", kind, failed.rows, problem)
            return
        if failed.steering is None:
            self._problem = problem
            self.close()
            logger.warning("CUDA graphs are off for this model: %s", problem)
            return
        self._refused = failed.steering
        for shape in [s for s in self._captured if s.steering == failed.steering]:
            del self._captured[shape]
        logger.warning("Steered steps run without CUDA graphs until the profiles change: %s", problem)


def token_counts(most: int) -> list[int]:
    """Return the numbers of tokens to which steps with prompts are padded: powers of two, those halfway between two,
    and ``most``.
    """
    most = min(most, MAX_TOKENS)
    powers = [MIN_TOKENS << i for i in range(most.bit_length())]
    counts = sorted([*powers, *(count + count // 2 for count in powers)])
    return [*(count for count in counts if count < most), most] if most else []


def _rounded(count: int, least: int, factor: int) -> int:
    """Return the smallest of ``least``, ``least * factor``, ``least * factor ** 2``, ... that is at least ``count``."""
    while least < count:
        least *= factor
    return least


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
