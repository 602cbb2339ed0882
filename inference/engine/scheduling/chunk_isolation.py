"""Isolation of failures among the chunks of a step: how to undo an attempt, and how to shrink a chunk of a prompt.

Keys and values need no undo, because the next attempt writes the same places again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from inference.engine.model_runner import StepOutput
from inference.engine.scheduling.scheduler import Chunk
from inference.engine.scheduling.sequence import Sequence, SequenceState
from inference.engine.scheduling.step_isolation import OUT_OF_MEMORY, Restore, StepIsolation
from inference.interventions import Site


def chunk_isolation(run: Callable[[list[Chunk]], StepOutput]) -> StepIsolation[Chunk, StepOutput]:
    """Return the isolation for a generation model; ``run`` is the method of its runner."""
    return StepIsolation(run, remember=remember_chunk, shrink=shrink_chunk)


def remember_chunk(chunk: Chunk) -> Restore:
    return _Before.of(chunk).restore


def shrink_chunk(chunk: Chunk, code: str) -> Chunk | None:
    """Return the chunk without its drafts, so that drafts never fail a request; or, if memory is short, half of a
    prompt's chunk."""
    if chunk.drafts:
        return Chunk(chunk.sequence, chunk.num_own)
    if code == OUT_OF_MEMORY and chunk.num_tokens > 1 and chunk.sequence.state is SequenceState.PREFILL:
        return Chunk(chunk.sequence, chunk.num_tokens // 2)
    return None


@dataclass(frozen=True, slots=True)
class _Before:
    """The state of a sequence before an attempt."""

    sequence: Sequence
    num_computed: int
    steering_expected: int
    steering_applied: int
    steering_effects: dict[Site, list[float]]
    random: Tensor | None  # the generator's state, if the attempt draws from it
    uniforms: tuple[float, ...]  # drawn before and not used yet

    @classmethod
    def of(cls, chunk: Chunk) -> _Before:
        sequence = chunk.sequence
        draws = not sequence.request.sampling.is_greedy and len(sequence.uniforms) < chunk.num_sampled
        return cls(
            sequence,
            sequence.num_computed,
            sequence.steering_expected,
            sequence.steering_applied,
            {site: list(total) for site, total in sequence.steering_effects.items()},
            sequence.generator.get_state() if draws else None,
            tuple(sequence.uniforms),
        )

    def restore(self) -> None:
        self.sequence.num_computed = self.num_computed
        self.sequence.steering_expected = self.steering_expected
        self.sequence.steering_applied = self.steering_applied
        self.sequence.steering_effects = self.steering_effects
        if self.random is not None:
            self.sequence.generator.set_state(self.random)
        self.sequence.uniforms[:] = self.uniforms
