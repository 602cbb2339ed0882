"""Run the chunks of a step through one model: packed forward pass, steering, sampling."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.engine.cache.plan import ModelCache
from inference.engine.cache.policy import BlockCopy, CacheOp
from inference.engine.capture.sequence import CapturedRows
from inference.engine.capture.step import plan_captures
from inference.engine.capture.table import CaptureTable
from inference.engine.kernels import native
from inference.engine.kernels.accelerator import Accelerator
from inference.engine.kernels.attention import TokenSpan
from inference.engine.kernels.step_graphs import Shape, StepGraphs, padded_rows
from inference.engine.kernels.step_inputs import (
    StepArrays,
    StepTensors,
    build_step,
    differ_only_in_tokens,
    step_tensors,
)
from inference.engine.kernels.varlen_attention import VarlenStep
from inference.engine.messages import TokenLogprob
from inference.engine.models.loader import LoadedModel
from inference.engine.models.sites import SiteHooks
from inference.engine.output.scoring import Scores
from inference.engine.sampling.logprobs import prompt_logprobs, scores
from inference.engine.sampling.sampler import Meanwhile, Sampled, Sampler
from inference.engine.sampling.token_masks import MaskComputer, TokenMasks
from inference.engine.sampling.transfers import to_device
from inference.engine.sampling.verification import sample_and_verify
from inference.engine.scheduling.scheduler import Chunk
from inference.engine.scheduling.sequence import Sequence
from inference.engine.steering.prompt_gates import PromptGateStep
from inference.engine.steering.step import SteeringStep
from inference.engine.steering.table import SteeringTable
from inference.interventions import Site

UNKNOWN = -1  # a token that is only known on the device


@dataclass(frozen=True, slots=True)
class TokenSteering:
    """Steering of one token: the expected and actual number of sites, and the effects as in StepEffects."""

    expected: int
    applied: int
    sites: tuple[Site, ...]
    effects: list[list[float]]

    def note(self, sequence: Sequence) -> None:
        sequence.steering_expected += self.expected
        sequence.steering_applied += self.applied
        sequence.note_effects(self.sites, self.effects)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The sampled tokens of the chunks, in their order, and log-probabilities of prompt tokens by sequence.

    ``sampled`` has a row for each of ``sequences``. A sequence may occur several times in a row: then all of its tokens
    but the last are accepted drafts, and ``draft_steering`` has the steering of each draft. ``found``: captured rows,
    also of drafts. ``scores``: scores of continuations.
    """

    sampled: Sampled
    prompt_logprobs: dict[Sequence, tuple[TokenLogprob | None, ...]]
    sequences: list[Sequence]
    draft_steering: dict[Sequence, Iterator[TokenSteering]] = field(default_factory=dict)
    found: dict[Sequence, list[CapturedRows]] = field(default_factory=dict)
    scores: dict[Sequence, Scores] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A step that was started on the device before its tokens were known on the host.

    ``step`` has no tokens. ``steering``: the key of the steering tables that it read; None if nothing is steered.
    """

    sequences: list[Sequence]
    step: StepArrays
    steering: Hashable | None
    logits: Tensor


class ModelRunner:
    """One model on its device, with its cache and steering tables. ``accelerator``: how it runs on a GPU.

    There, a step that only decodes is followed at once by the next one, on the tokens that lie on the device, while
    the host still handles its result. If the next step turns out to be another one, because a sequence ended or
    arrived, it runs again, and writes the same keys and values again. ``looks_ahead`` False: never. ``max_chunk``: the
    most prompt tokens of a step.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        cache: ModelCache,
        accelerator: Accelerator | None = None,
        *,
        looks_ahead: bool = True,
        max_chunk: int = 512,
    ) -> None:
        self.loaded = loaded
        self._cache = cache
        self._max_chunk = max_chunk
        self._cache_ops: deque[CacheOp] = deque()
        self.device = torch.device(loaded.device)
        hooks = SiteHooks(loaded.module)
        self.steering = SteeringTable(loaded.module, self.device, hooks, batch_invariant=loaded.batch_invariant)
        self.captures = CaptureTable(loaded.module, hooks)
        self.masks = MaskComputer(loaded.grammars.vocab_size if loaded.grammars else loaded.vocab_size)
        self._sampler = Sampler()
        self._attention = None if accelerator is None else accelerator.attention
        self.graphs = self._step_graphs(accelerator)
        self._looks_ahead = looks_ahead
        self._ahead: _Ahead | None = None
        self.steps_ahead = 0  # that were used

    @property
    def kernels(self) -> str:
        """A line that names the kernels in use."""
        if self._attention is None:
            return f"CPU: {native.active()}"
        return f"attention by {self._attention}; CUDA graphs {self.graphs or 'off'}"

    def close(self) -> None:
        self._ahead = None
        self.steering.close()
        self.captures.close()
        self.masks.close()
        if self.graphs is not None:
            self.graphs.close()
            self.graphs = None  # it refers to this object, which must not keep the model's memory

    def forget_batch(self) -> None:
        """Drop cached batch state after a sequence left the batch."""
        self._sampler.forget()

    @torch.inference_mode()
    def run(self, chunks: list[Chunk]) -> StepOutput:
        """Run one forward pass over all chunks and advance each sequence's ``num_computed``."""
        ahead, self._ahead = self._ahead, None
        self._apply_cache_ops()
        row_of_token = _rows(chunks)
        logit_places = _logit_places(chunks)
        capture = plan_captures(chunks, batch_invariant=self.loaded.batch_invariant)
        gates = _prompt_gates(chunks, batch_invariant=self.loaded.batch_invariant)
        masks = self.masks.start([c.sequence.matcher for c in chunks for _ in range(c.num_sampled)])
        try:
            with self.steering.steering(row_of_token, gates) as step, self.captures.capturing(capture):
                logits = self._forward(chunks, logit_places, row_of_token, ahead)
        finally:
            masks.wait()
        found = capture.found() if capture is not None else {}
        go_ahead = partial(self._go_ahead, chunks, step) if self._may_go_ahead(chunks) else None
        output = _read_out(chunks, logits, self._sampler, masks.result(), go_ahead)
        draft_steering = _note_steering(chunks, step)  # after sampling, which waits for the device anyway
        if gates is not None:
            gates.commit()
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.num_own
        return replace(output, draft_steering=draft_steering, found=found)

    def _forward(
        self, chunks: list[Chunk], logit_places: list[int], row_of_token: list[int], ahead: _Ahead | None
    ) -> Tensor:
        """Return ``[len(logit_places), vocab]`` logits of these places in the packed step."""
        segments, slots = _segments(chunks)
        tokens = [t for c in chunks for t in _chunk_tokens(c)]
        step = build_step(
            segments,
            tokens,
            logit_places or [0],
            np.array(row_of_token) if row_of_token else np.zeros(len(tokens), dtype=np.int64),
            slots,
            self._cache.policy.tables,
            self._cache.policy.block_size,
        )
        logits = self._taken(ahead, chunks, step)
        if logits is None:
            logits = self._replayed(step)
        if logits is None:
            tensors = step_tensors(step, self.device)
            varlen = tensors.varlen(self._attention, segments) if self._attention else None
            logits = self._logits(tensors, segments, varlen, tensors.logit_places)
        return logits if logit_places else logits[:0]

    def _logits(
        self,
        tensors: StepTensors,
        segments: tuple[TokenSpan, ...],
        varlen: VarlenStep | None,
        logit_places: Tensor | int,
    ) -> Tensor:
        """Return logits. ``logit_places`` 0: all places."""
        output = self.loaded.module(
            input_ids=tensors.tokens.unsqueeze(0),
            position_ids=tensors.positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=logit_places,
            packed_batch=tensors.batch(
                segments,
                self._cache.pool,
                varlen,
                batch_invariant=self.loaded.batch_invariant,
                outputs_only=varlen is None,
            ),
        )
        return output.logits[0]  # type: ignore[no-any-return]

    # Graphs

    def _step_graphs(self, accelerator: Accelerator | None) -> StepGraphs | None:
        if accelerator is None or accelerator.capture is None:
            return None
        tables, size = self._cache.policy.tables, self._cache.policy.block_size
        takes_prompts = accelerator.attention.is_complete and bool(self._cache.pool.spare_blocks)
        return StepGraphs(
            self._static_logits,
            accelerator.capture,
            self.device,
            max_rows=len(tables[0]),
            block_size=size,
            max_keys=tables[0].shape[1] * size,
            counts_keys=not accelerator.attention.is_complete,
            max_prompt_tokens=self._max_chunk + len(tables[0]) if takes_prompts else 0,
            spare_blocks=self._cache.pool.spare_blocks,
        )

    def _static_logits(self, tensors: StepTensors, shape: Shape) -> Tensor:
        """Return logits of a step of this shape. Does not read on the host, so it can be captured."""
        assert self._attention is not None, "graphs belong to an accelerator"
        self.steering.begin_static(tensors.steering_rows)
        try:
            if not shape.segments:
                segments = (TokenSpan(shape.keys - 1, 1),) * shape.rows
                return self._logits(tensors, segments, tensors.varlen(self._attention, segments, shape.keys), 0)
            varlen = tensors.varlen_of_any(self._attention, shape.keys)
            segments = (TokenSpan(0, shape.rows),) * shape.segments
            return self._logits(tensors, segments, varlen, tensors.logit_places)
        finally:
            self.steering.end_static()

    def _replayed(self, step: StepArrays) -> Tensor | None:
        """Return the logits if the step has a CUDA graph. Steering then counts what its hooks did at graph capture."""
        if self.graphs is None or self.captures.is_capturing or not self.steering.can_be_captured:
            return None
        steering = self._steering_key(step)
        logits = self.graphs.run(step, steering)
        if logits is not None and steering is not None:
            self.steering.replayed()
        return logits

    def _steering_key(self, step: StepArrays) -> Hashable | None:
        return self.steering.graph_key if step.steering_rows.any() else None

    @torch.inference_mode()
    def prepare(self) -> None:
        """Compile the steering kernel, and capture unsteered steps of every number of sequences and of prompts of every
        length, before there is traffic to hold up.
        """
        dtype = next(self.loaded.module.parameters()).dtype
        self.steering.prepare(torch.zeros(1, self.loaded.hidden_size, dtype=dtype, device=self.device))
        if self.graphs is not None:
            with self.steering.steering([]):
                self.graphs.prepare(self._single_steps(self._cache.policy.tables))

    @torch.inference_mode()
    def prepare_steered_graph(self) -> bool:
        """Capture a steered step that has no graph yet, while no sequence runs. Return whether one was missing.

        Its tokens are written to the spare block, because the cache may hold prefixes. Steering for which an SAE runs
        is left out: its graphs are invalid after the next profile.
        """
        spare = self._cache.pool.spare_blocks
        if self.graphs is None or not spare or not self.steering.is_worth_capturing:
            return False
        own = self._cache.policy.tables
        tables = tuple(np.full_like(table, block) for table, block in zip(own, spare, strict=True))
        with self.steering.steering([1]):  # any row: the steps' own rows are 0
            return self.graphs.prepare_next(self._single_steps(tables), self.steering.graph_key)

    def _single_steps(self, tables: tuple[NDArray[np.int32], ...]) -> list[StepArrays]:
        """Return steps of every number of sequences that has a graph, with one token each, the largest first."""
        size = self._cache.policy.block_size
        return [
            build_step(
                (TokenSpan(0, 1),) * rows,
                [0] * rows,
                range(rows),
                np.zeros(rows, dtype=np.int64),
                np.zeros(rows, dtype=np.int64),
                tables,
                size,
            )
            for rows in sorted({padded_rows(count) for count in range(1, len(tables[0]) + 1)}, reverse=True)
        ]

    # Steps ahead

    def _may_go_ahead(self, chunks: list[Chunk]) -> bool:
        """Return whether the next step is probably the same sequences' next tokens, whatever the sampled ones are."""
        return (
            self._looks_ahead
            and self.graphs is not None
            and self.graphs.num_captured > 0
            and all(chunk.samples and chunk.num_tokens == 1 and _goes_on(chunk.sequence) for chunk in chunks)
        )

    def _go_ahead(self, chunks: list[Chunk], step: SteeringStep, tokens: Tensor) -> None:
        """Start the next step on the device; ``tokens`` ``[chunks]`` are there. Nothing happens if it cannot run."""
        assert self.graphs is not None, "steps ahead are replayed"
        step.copy_effects()  # the next step overwrites them
        sequences = [chunk.sequence for chunk in chunks]
        if not all(self._cache.policy.extend(sequence, 2) for sequence in sequences):
            return
        self._apply_cache_ops()
        rows = [row for sequence in sequences for row in sequence.steering_rows((UNKNOWN,), after=1)]
        following = build_step(
            tuple(TokenSpan(sequence.num_computed + 1, 1) for sequence in sequences),
            [0] * len(sequences),
            range(len(sequences)),
            np.array(rows),
            np.array([sequence.slot for sequence in sequences]),
            self._cache.policy.tables,
            self._cache.policy.block_size,
        )
        steering = self._steering_key(following)
        with self.steering.steering(rows if any(rows) else []):
            logits = self.graphs.run(following, steering, tokens)
        if logits is not None:
            self._ahead = _Ahead(sequences, following, steering, logits)

    def _taken(self, ahead: _Ahead | None, chunks: list[Chunk], step: StepArrays) -> Tensor | None:
        """Return the logits of the step ahead, if it is this step."""
        if ahead is None or ahead.sequences != [chunk.sequence for chunk in chunks]:
            return None
        if self.captures.is_capturing or not self.steering.can_be_captured:
            return None
        if ahead.steering != self._steering_key(step) or not differ_only_in_tokens(ahead.step, step):
            return None
        if ahead.steering is not None:
            self.steering.replayed()
        self.steps_ahead += 1
        return ahead.logits

    def _apply_cache_ops(self) -> None:
        """Apply the cache policy's copies and discards. An operation that fails is retried at the next attempt."""
        self._cache_ops.extend(self._cache.policy.cache_ops())
        while self._cache_ops:
            order = self._cache_ops[0]
            if isinstance(order, BlockCopy):
                self._cache.pool.copy(order.group, order.source, order.target, order.num_tokens)
            else:
                self._cache.pool.discard(order.group, order.block, order.start, order.end)
            self._cache_ops.popleft()


def _goes_on(sequence: Sequence) -> bool:
    """Return whether the sequence's next step does not depend on its next token, except for the token itself."""
    return (
        not sequence.drafts
        and sequence.segments is None
        and sequence.open_gates is None
        and sequence.capture is None
        and sequence.scoring is None
        and not sequence.computes_prompt_logprobs
        and sequence.num_computed + 1 == sequence.num_tokens
        and sequence.num_generated + 1 < sequence.max_tokens
    )


def _chunk_tokens(chunk: Chunk) -> list[int]:
    start = chunk.sequence.num_computed
    return [*chunk.sequence.token_ids[start : start + chunk.num_own], *chunk.drafts]


def _segments(chunks: list[Chunk]) -> tuple[tuple[TokenSpan, ...], NDArray[np.int64]]:
    """The step's segments, and the row of the cache's tables of each.

    The tokens of a chunk with drafts are separate segments, because the kernels for single tokens are faster.
    """
    segments: list[TokenSpan] = []
    slots: list[int] = []
    for chunk in chunks:
        start, num_singles = chunk.sequence.num_computed, chunk.num_tokens if chunk.drafts else 0
        segments.extend(TokenSpan(start + i, 1) for i in range(num_singles))
        if not num_singles:
            segments.append(TokenSpan(start, chunk.num_tokens))
        slots.extend([chunk.sequence.slot] * (num_singles or 1))
    return tuple(segments), np.array(slots)


def _rows(chunks: list[Chunk]) -> list[int]:
    """Return the steering row of each token of the step; empty if none is steered."""
    if all(chunk.sequence.rows is None for chunk in chunks):
        return []
    return [row for chunk in chunks for row in chunk.sequence.steering_rows(_chunk_tokens(chunk))]


def _prompt_gates(chunks: list[Chunk], *, batch_invariant: bool) -> PromptGateStep | None:
    """Return the gates that the step's prompts decide, or prepare to; None if there are none."""
    found, first = PromptGateStep(batch_invariant=batch_invariant), 0
    for chunk in chunks:
        if chunk.sequence.open_gates is not None:
            found.add(chunk.sequence.open_gates, first, chunk.sequence.num_computed, chunk.num_tokens)
        first += chunk.num_tokens
    return found if found.ends else None


def _note_steering(chunks: list[Chunk], step: SteeringStep) -> dict[Sequence, Iterator[TokenSteering]]:
    """Record the steering of each sequence. Returns that of drafts, which is not recorded yet."""
    of_drafts: dict[Sequence, Iterator[TokenSteering]] = {}
    if step.plan is None:
        return of_drafts
    expected, applied = step.counts(sum(chunk.num_tokens for chunk in chunks))
    effects = step.effects()
    starts = list(accumulate((chunk.num_tokens for chunk in chunks), initial=0))
    steered = [(c, first, first + c.num_own) for c, first in zip(chunks, starts, strict=False) if c.sequence.rows]
    sums = effects.sums([(first, own) for _, first, own in steered]) if effects is not None else []
    for number, (chunk, first, own) in enumerate(steered):
        sequence, last = chunk.sequence, first + chunk.num_tokens
        sequence.steering_expected += sum(expected[first:own])
        sequence.steering_applied += sum(applied[first:own])
        if effects is not None:
            sequence.note_effects(effects.sites, sums[number])
        if chunk.drafts:
            places = range(own, last)
            drafted = [[]] * len(places) if effects is None else effects.sums([(one, one + 1) for one in places])
            sites = () if effects is None else effects.sites
            of_drafts[sequence] = iter(
                [
                    TokenSteering(expected[at], applied[at], sites, sums)
                    for at, sums in zip(places, drafted, strict=True)
                ]
            )
    return of_drafts


def _logit_places(chunks: list[Chunk]) -> list[int]:
    """Return the places in the packed step whose logits are needed: last tokens, drafts, prompts with requested
    log-probabilities, and continuations to score. They are always the last places of a chunk.
    """
    places: list[int] = []
    first = 0
    for chunk in chunks:
        end = first + chunk.num_tokens
        places.extend(range(end - _num_logits(chunk), end))
        first = end
    return places


def _num_logits(chunk: Chunk) -> int:
    if chunk.sequence.computes_prompt_logprobs:
        return chunk.num_tokens
    return len(chunk.sequence.scored_places(chunk.num_tokens)) + chunk.num_sampled


def _read_out(
    chunks: list[Chunk], logits: Tensor, sampler: Sampler, masks: TokenMasks | None, meanwhile: Meanwhile | None
) -> StepOutput:
    """Split the logits into those for sampling and those of prompts, and sample."""
    sampled_rows: list[int] = []
    prompts, scored, first = {}, {}, 0
    for chunk in chunks:
        sequence = chunk.sequence
        count = _num_logits(chunk)
        if sequence.computes_prompt_logprobs:
            prompts[sequence] = _prompt_logprobs(sequence, chunk.num_tokens, logits[first : first + count])
        if places := sequence.scored_places(chunk.num_tokens):
            following = sequence.token_ids[places.start + 1 : places.stop + 1]
            rows = logits[first + count - chunk.num_sampled - len(places) : first + count - chunk.num_sampled]
            keep = sequence.scoring is not None and bool(sequence.scoring.request.pair)
            scored[sequence] = Scores(places.start, *scores(rows, following, keep=keep))
        sampled_rows.extend(range(first + count - chunk.num_sampled, first + count))
        first += count
    sequences, sampled = sample_and_verify(sampler, chunks, _chosen(logits, sampled_rows), masks, meanwhile)
    return StepOutput(sampled, prompts, sequences, scores=scored)


def _chosen(logits: Tensor, rows: list[int]) -> Tensor:
    return logits if len(rows) == len(logits) else logits[to_device(rows, logits.device, torch.int64)]


def _prompt_logprobs(sequence: Sequence, num_tokens: int, logits: Tensor) -> tuple[TokenLogprob | None, ...]:
    """Return the log-probabilities of the prompt's tokens after the chunk's places, preceded by None for the first
    token.
    """
    start = sequence.num_computed
    num_top = sequence.request.sampling.prompt_logprobs or 0
    first: list[TokenLogprob | None] = [None] if start == 0 else []
    following = sequence.token_ids[start + 1 : sequence.num_prompt][:num_tokens]
    return (*first, *prompt_logprobs(logits, following, num_top))
