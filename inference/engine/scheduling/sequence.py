"""One sequence, from its arrival to its terminal event."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch

from inference.engine.cache.prefix_keys import PREFIX_BLOCK, PrefixKeys, Programs
from inference.engine.capture.sequence import SequenceCapture
from inference.engine.messages import GenerationRequest, SiteEffect, SteeringReceipt, Timings, Usage
from inference.engine.output.detokenizer import Detokenizer
from inference.engine.output.scoring import SequenceScoring
from inference.engine.output.segments import SequenceSegments
from inference.engine.sampling.token_history import TokenHistory
from inference.engine.sampling.token_masks import Matcher
from inference.engine.scheduling.drafter import Drafter
from inference.engine.scheduling.step_isolation import SERVER_ERROR
from inference.engine.steering.prompt_gates import SequenceGates
from inference.engine.steering.rows import SteeringRows
from inference.interventions import Site

logger = logging.getLogger(__name__)


class SequenceState(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    FAILED = "failed"


class Rank(NamedTuple):
    """The place of a sequence in the queue: lower ones go first. ``arrival`` makes it unique."""

    is_background: bool = False
    priority: int = 0
    submitted_at: float = 0.0
    choice: int = 0  # the request's index
    arrival: int = 0


NO_RANK = Rank()


class Progress(NamedTuple):
    """What a scheduler has run since its start."""

    num_steps: int
    num_prompt_tokens: int


@dataclass(eq=False)
class Sequence:
    """A request inside the engine, from its arrival to its terminal event. Owned by the engine thread."""

    request: GenerationRequest
    sink: object
    submitted_at: float
    max_tokens: int
    detokenizer: Detokenizer
    generator: torch.Generator
    stop_ids: frozenset[int] = frozenset()
    matcher: Matcher | None = None

    state: SequenceState = SequenceState.WAITING
    rank: Rank = NO_RANK  # set by the scheduler
    token_ids: list[int] = field(init=False)  # prompt and generated
    prefix_keys: PrefixKeys = field(init=False)
    num_computed: int = 0  # tokens whose keys and values are in the cache
    num_cached: int = 0  # tokens of the prompt that were in the cache before the first step
    num_preemptions: int = 0
    slot: int = -1  # the row in the cache's tables while it runs
    admitted_at: int = 0  # the scheduler's step
    decodes_since: Progress | None = None  # what the scheduler had run before the first token
    rows: SteeringRows | None = None
    gates: SequenceGates | None = None  # only if the prompt decides some
    segments: SequenceSegments | None = None  # only if steering depends on segments
    capture: SequenceCapture | None = None
    scoring: SequenceScoring | None = None
    steering_expected: int = 0
    steering_applied: int = 0
    steering_effects: dict[Site, list[float]] = field(default_factory=dict)  # tokens, those changed, sum of changes
    has_prompt_logprobs: bool = False  # all of them were sent
    history: TokenHistory | None = None  # only for penalties
    uniforms: list[float] = field(default_factory=list)  # drawn from the generator, not used yet; the last is next
    drafts: tuple[int, ...] = ()  # tokens that the next step verifies
    drafter: Drafter | None = None  # created when speculation first uses the sequence
    first_run_at: float | None = None
    first_token_at: float | None = None

    def __post_init__(self) -> None:
        self.token_ids = [*self.request.prompt_token_ids, *self.request.continuation]
        self.prefix_keys = PrefixKeys(
            PREFIX_BLOCK, _programs(self.request), _num_prompt_program(self.request), self.request.cache_salt
        )
        self.gates = _prompt_gates(self.request)
        if self.request.captures:
            self.capture = SequenceCapture(self.request.captures, self.num_prompt)
        if self.request.scoring is not None:
            self.scoring = SequenceScoring(self.request.scoring, self.num_prompt)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_pending_tokens(self) -> int:
        """The number of tokens to compute before the next one can be sampled."""
        return len(self.token_ids) - self.num_computed

    @property
    def computes_prompt_logprobs(self) -> bool:
        """Whether the next chunk computes log-probabilities of prompt tokens: only while the prompt runs."""
        return self._needs_prompt_logprobs and self.num_computed < self.num_prompt

    @property
    def num_reusable(self) -> int:
        """The number of leading tokens that can come from the cache."""
        if self._needs_prompt_logprobs:
            return 0
        last = self.num_tokens - 1  # it always runs, because the next token is sampled there
        if self.scoring is not None:
            last = min(last, self.scoring.next_place)
        if self.open_gates is not None:
            last = min(last, self.open_gates.next_place)
        return last if self.capture is None else self.capture.next_place(last)

    @property
    def open_gates(self) -> SequenceGates | None:
        """The gates that the prompt still has to decide."""
        return None if self.gates is None or self.gates.decisions is not None else self.gates

    def steering_rows(self, tokens: Many[int], *, after: int = 0) -> list[int]:
        """Return the rows of the next tokens, or of those that follow ``after`` others, in the steering tables."""
        rows = self.rows
        if rows is None:
            return [0] * len(tokens)
        if self.gates is not None and self.gates.decisions is not None:
            rows = rows.decided[self.gates.decisions]
        return rows.of_tokens(tokens, self.num_computed + after, self.num_prompt, self.known_segments())

    def known_segments(self) -> SequenceSegments | None:
        """Return the segments of all generated tokens; None if steering does not depend on them."""
        if self.segments is not None:
            self.segments.take(self.token_ids[self.num_prompt + self.segments.num_known :])
        return self.segments

    @property
    def reads_places(self) -> bool:
        """Whether logits of positions other than the last one are needed."""
        return self.computes_prompt_logprobs or self.scoring is not None

    def most_tokens(self, num_places: int) -> int:
        """Return the length of the longest next chunk that needs logits at no more than ``num_places`` positions."""
        if self.computes_prompt_logprobs:
            return num_places
        if self.scoring is None:
            return self.num_pending_tokens
        return max(0, self.scoring.next_place - self.num_computed) + num_places

    def scored_places(self, num_tokens: int) -> range:
        """Return the scored positions that the next tokens give logits for."""
        return range(0) if self.scoring is None else self.scoring.places(self.num_computed, num_tokens)

    @property
    def allows_drafts(self) -> bool:
        """Whether draft tokens may be run after the last one. Grammars and pooled captures need final tokens."""
        return self.matcher is None and not (self.capture is not None and self.capture.has_pools)

    @property
    def _needs_prompt_logprobs(self) -> bool:
        return self.request.sampling.prompt_logprobs is not None and not self.has_prompt_logprobs

    @property
    def is_done(self) -> bool:
        return self.state is SequenceState.FINISHED or self.state is SequenceState.FAILED  # a set would hash all three

    def usage(self) -> Usage:
        return Usage(self.num_prompt, self.num_cached, self.num_generated)

    def timings(self) -> Timings:
        now = time.monotonic()
        return Timings(
            queue_s=(self.first_run_at or now) - self.submitted_at,
            first_token_s=None if self.first_token_at is None else self.first_token_at - self.submitted_at,
            total_s=now - self.submitted_at,
        )

    def receipt(self) -> SteeringReceipt | None:
        intervention = self.request.intervention
        if intervention is None:
            return None
        effects = tuple(
            SiteEffect(site, int(num_tokens), int(num_changed), change)
            for site, (num_tokens, num_changed, change) in sorted(self.steering_effects.items())
        )
        return SteeringReceipt(
            intervention.fingerprint,
            self.steering_expected,
            self.steering_applied,
            effects,
            intervention.removals,
            intervention.inert,
        )

    def note_effects(self, sites: tuple[Site, ...], sums: list[list[float]]) -> None:
        """Add the effects of steering on further tokens: per site the number of tokens, of changed tokens, and the sum
        of changes."""
        for site, (num_tokens, num_changed, change) in zip(sites, sums, strict=True):
            if num_tokens:
                total = self.steering_effects.setdefault(site, [0.0, 0.0, 0.0])
                total[0] += num_tokens
                total[1] += num_changed
                total[2] += change


def _prompt_gates(request: GenerationRequest) -> SequenceGates | None:
    intervention = request.intervention
    if intervention is None or not (gates := intervention.prompt_gates):
        return None
    return SequenceGates(gates, request.prompt_token_ids, intervention.skip_token_ids)


def _num_prompt_program(request: GenerationRequest) -> int:
    """Return how many tokens the prompt's program steers: all, or all but the last one if that has its own program."""
    tells_last = request.intervention is not None and request.intervention.depends_on_last_prompt_token
    return len(request.prompt_token_ids) - tells_last


def _programs(request: GenerationRequest) -> Programs:
    intervention = request.intervention
    if intervention is None:
        return Programs()
    generation = intervention.program("generation")
    if generation and intervention.depends_on_segments:
        generation += f":{request.segment_rules}"  # other rules may assign the same tokens to other segments
    return Programs(intervention.program("prompt"), generation)


class SequenceFault(Exception):
    """A sequence cannot continue. ``code`` and the message are shown to its client."""

    def __init__(self, sequence: Sequence, code: str, message: str) -> None:
        super().__init__(message)
        self.sequence = sequence
        self.code = code


class blaming:
    """Turn exceptions in the block into a SequenceFault of the sequence, except a lost device, which affects all
    sequences.

    A class, because every sequence enters several of these blocks in each step, and a generator needs three times as
    many calls.
    """

    __slots__ = ("_message", "_sequence")

    def __init__(self, sequence: Sequence, message: str = "The request could not be scheduled.") -> None:
        self._sequence = sequence
        self._message = message

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, (SequenceFault, torch.AcceleratorError)):
            return
        # Inconsistent bookkeeping of one sequence must not end the others.
        logger.error("A sequence failed outside the model.", exc_info=error)
        raise SequenceFault(self._sequence, SERVER_ERROR, self._message) from error
