"""Runs a step so that a sequence that makes it raise, or that memory is too short for, takes no other with it.

An attempt that raises is undone and its chunks are run again in halves, down to the guilty ones: about ``2 log2 n``
attempts for one guilty sequence of n. Out of memory also halves a lone prompt's chunk before the request is failed.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference.engine.model_runner import StepOutput
from inference.engine.request import RequestState, Sequence
from inference.engine.scheduler import Chunk
from inference.engine.step_counters import StepCounters

logger = logging.getLogger(__name__)

OUT_OF_MEMORY = "out_of_memory"
SERVER_ERROR = "server_error"
_MESSAGES = {
    OUT_OF_MEMORY: "The server ran out of memory for this request.",
    SERVER_ERROR: "The model failed on this request.",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A sequence that cannot go on; ``code`` and ``message`` are what its client sees."""

    sequence: Sequence
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """Chunks that ran together with their output, and the sequences that failed. A chunk may have been cut short."""

    parts: list[tuple[list[Chunk], StepOutput]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def chunks(self) -> list[Chunk]:
        """Those that ran."""
        return [chunk for part, _ in self.parts for chunk in part]


class StepIsolation:
    """``run`` makes one forward pass; what an attempt may change before it raises is restored from :class:`_Before`.

    Keys and values need no undoing: the next attempt writes the same places again. ``free_memory`` is called after
    an attempt that ran out of memory.
    """

    def __init__(self, run: Callable[[list[Chunk]], StepOutput], free_memory: Callable[[], None] | None = None) -> None:
        self._run = run
        self._free_memory = free_memory or free_unused_memory
        self.counters = StepCounters()

    def run(self, chunks: list[Chunk]) -> StepResult:
        """Raises only what concerns the device or the process: AcceleratorError, SystemExit and their like."""
        began_at, result = time.monotonic(), StepResult()
        self._attempt(chunks, result)
        self.counters.seconds.add(time.monotonic() - began_at)
        self.counters.sequences.add(len(chunks))
        self.counters.tokens.add(sum(chunk.num_tokens for chunk in chunks))
        return result

    def _attempt(self, chunks: list[Chunk], result: StepResult) -> None:
        before = [_Before.of(chunk) for chunk in chunks]
        code = self._try(chunks, result)
        if not code:
            return
        self.counters.faults[code] += 1
        for state in before:
            state.restore()
        if code == OUT_OF_MEMORY:
            self._free_memory()
        smaller = _smaller(chunks, code)
        for part in smaller:
            self._attempt(part, result)
        if not smaller:
            result.failures.append(Failure(chunks[0].sequence, code, _MESSAGES[code]))

    def _try(self, chunks: list[Chunk], result: StepResult) -> str:
        """The code of what went wrong, "" when nothing did. When it returns, no traceback holds tensors any more."""
        try:
            result.parts.append((chunks, self._run(chunks)))
        except torch.AcceleratorError:
            raise  # every further call would raise it too: the device is lost for this process
        except Exception as error:
            # Whatever a model or a hook raises concerns the sequences of this attempt only.
            code = OUT_OF_MEMORY if is_out_of_memory(error) else SERVER_ERROR
            logger.exception("An attempt at a step of %d sequences failed (%s).", len(chunks), code)
            return code
        return ""


@dataclass(frozen=True, slots=True)
class _Before:
    """A sequence as it was before an attempt."""

    sequence: Sequence
    num_computed: int
    steering_expected: int
    steering_applied: int
    random: Tensor | None  # the generator's state, where the attempt may draw from it
    uniforms: tuple[float, ...]  # drawn before and not used yet

    @classmethod
    def of(cls, chunk: Chunk) -> _Before:
        sequence = chunk.sequence
        draws = chunk.samples and sequence.request.sampling.temperature > 0
        return cls(
            sequence,
            sequence.num_computed,
            sequence.steering_expected,
            sequence.steering_applied,
            sequence.generator.get_state() if draws else None,
            tuple(sequence.uniforms),
        )

    def restore(self) -> None:
        self.sequence.num_computed = self.num_computed
        self.sequence.steering_expected = self.steering_expected
        self.sequence.steering_applied = self.steering_applied
        if self.random is not None:
            self.sequence.generator.set_state(self.random)
            self.sequence.uniforms[:] = self.uniforms


def is_out_of_memory(error: Exception) -> bool:
    """torch has an exception of its own for accelerators only; its CPU allocator raises a RuntimeError."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def free_unused_memory() -> None:
    """Give back what torch caches, and what only cycles still hold."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _smaller(chunks: list[Chunk], code: str) -> list[list[Chunk]]:
    """What to try instead; nothing for a lone chunk that cannot shrink."""
    if len(chunks) > 1:
        middle = len(chunks) // 2
        return [chunks[:middle], chunks[middle:]]
    (chunk,) = chunks
    if code == OUT_OF_MEMORY and chunk.num_tokens > 1 and chunk.sequence.state is RequestState.PREFILL:
        return [[Chunk(chunk.sequence, chunk.num_tokens // 2)]]
    return []
