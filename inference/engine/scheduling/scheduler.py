"""Choose the sequences of the next step. Independent of tensors.

All decoding sequences run in each step, one token each. Prompts share a budget of tokens per step, so decoding never
waits for more than one chunk, however long a prompt is. Within a priority, the prompt with the fewest remaining tokens
goes first, and the one that has waited longest always gets a share, so a long prompt neither blocks short ones nor is
starved by them. The prompts of a burst may hold up sequences of the same burst, but not older ones. When memory runs
short, the latest sequence is preempted: its cache is released, it waits again and is recomputed.

The batching modes differ in when they admit sequences (:mod:`inference.engine.scheduling.admission`). A step either
runs something, or fails a sequence that cannot run (:class:`SequenceFault`), or waits for a static batch to fill: no
sequence waits forever.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter

from inference.engine.cache.policy import CachePolicy, Growth
from inference.engine.cache.prefix_keys import PREFIX_BLOCK
from inference.engine.config import READ_PLACES, EngineConfig
from inference.engine.messages import BACKGROUND_PRIORITY
from inference.engine.scheduling.admission import Admission
from inference.engine.scheduling.budgets import PrefillBudget
from inference.engine.scheduling.sequence import Progress, Rank, Sequence, SequenceFault, SequenceState, blaming
from inference.engine.scheduling.speculation import DraftCounts, Speculation
from inference.engine.scheduling.step_isolation import OUT_OF_MEMORY, SERVER_ERROR

RANK = attrgetter("rank")
BURST_STEPS = 8  # prompts that begin at most so long after a sequence's first token came in the same burst
BURST_TOKENS = 16_384  # of prompts; a sequence beside which so many were computed is protected from its burst, too
SHORT_OF_MEMORY_TOKENS = {Growth.ALONE: 256, Growth.HELD: 64}  # of prompts in a step: it needs memory, too
OLDEST_SHARE = 4  # the prompt that has waited longest gets at least one in this many tokens of the budget


@dataclass(slots=True)
class Chunk:
    """The next ``num_tokens`` tokens of a sequence that are not computed yet. If none remain after them, the chunk
    samples.

    The last ones may be ``drafts``, which follow the sequence's own tokens. ``num_sampled``: the number of places at
    which a token is sampled. All is as it was before the step, which reads it several times.
    """

    sequence: Sequence
    num_tokens: int
    drafts: tuple[int, ...] = ()
    num_own: int = field(init=False)
    samples: bool = field(init=False)
    num_sampled: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_own = self.num_tokens - len(self.drafts)
        self.samples = self.num_own == self.sequence.num_pending_tokens
        self.num_sampled = 1 + len(self.drafts) if self.samples else 0


class Scheduler:
    """The queue and the running batch. ``schedule`` is called once per step, ``remove`` when a sequence has ended."""

    def __init__(self, config: EngineConfig, cache: CachePolicy, admission: Admission) -> None:
        self._max_running = config.max_batch_size
        self._max_drafts = config.max_prefill_tokens
        self._shares_prefixes = config.prefix_cache
        self._by_priority = config.scheduler_policy == "priority"
        self._cache = cache
        self._admission = admission
        self._budget = PrefillBudget(config.max_prefill_tokens, config.max_stall_factor, config.min_prefill_tokens)
        self._speculation = Speculation(config) if config.speculative_method == "prompt_lookup" else None
        self._waiting: list[Sequence] = []  # by rank, as the running ones
        self._running: list[Sequence] = []
        self._of_sink: dict[object, dict[Sequence, None]] = {}  # waiting and running
        self._num_foreground = 0
        self._done = Progress(0, 0)
        self._arrivals = count()
        self._growth = Growth.FREE
        self.num_preemptions = 0

    def add(self, sequence: Sequence) -> None:
        sequence.rank = self._rank(sequence)
        insort(self._waiting, sequence, key=RANK)
        self._of_sink.setdefault(sequence.sink, {})[sequence] = None
        self._num_foreground += not sequence.rank.is_background

    def limit_growth(self, growth: Growth) -> None:
        """Set which sequences may use memory that was never written; the others share the used memory. Unless all may,
        steps are short.
        """
        self._growth = growth
        self._cache.hold_growth(held=growth is not Growth.FREE)

    def schedule(self) -> list[Chunk]:
        """Return the next step's chunks, single tokens first; empty only if nothing may run yet.

        Raise SequenceFault for a sequence that cannot be scheduled. The others can then be scheduled without it.
        """
        before = self.num_preemptions
        singles = self._decode_chunks()
        # A sequence that was just preempted needs the memory first.
        num_deferred = self._admit() if self.num_preemptions == before else 0
        prefilling = self._prefilling()
        num_protected = self._num_protected(singles, prefilling)
        budget = self._budget.tokens(len(singles), num_protected, num_deferred + len(prefilling))
        prompts = self._prompt_chunks(min(budget, SHORT_OF_MEMORY_TOKENS.get(self._growth, budget)))
        # Sequences that were preempted for a later chunk do not run in this step.
        chunks = [chunk for chunk in singles + prompts if chunk.sequence.slot >= 0]
        if self._running and not chunks:
            raise SequenceFault(self._running[0], SERVER_ERROR, "The request could not be scheduled.")
        if not prompts and self._speculation is not None:
            return self._with_drafts(chunks, self._speculation)
        return sorted(chunks, key=lambda chunk: chunk.num_tokens > 1)

    def note_step(self, chunks: list[Chunk], seconds: float) -> list[SequenceFault]:
        """Record the duration of a step. Return the faults of sequences that cannot continue."""
        tokens = [chunk.num_tokens for chunk in chunks]
        num_prompt_tokens = sum(chunk.num_tokens for chunk in chunks if chunk.sequence.decodes_since is None)
        self._done = Progress(self._done.num_steps + 1, self._done.num_prompt_tokens + num_prompt_tokens)
        if not any(chunk.drafts for chunk in chunks):
            num_single = tokens.count(1)
            self._budget.note(num_single, sum(tokens) - num_single, seconds)
        if self._speculation is not None and all(chunk.num_own == 1 for chunk in chunks):
            self._speculation.note_step(sum(tokens), seconds)
        faults = []
        for chunk in chunks:
            try:
                with blaming(chunk.sequence):
                    self._cache.note_computed(chunk.sequence)
            except SequenceFault as fault:
                faults.append(fault)
        return faults

    def note_drafts(self, chunk: Chunk, num_accepted: int) -> None:
        """Record how many of the chunk's drafts were accepted."""
        if self._speculation is not None:
            self._speculation.note_outcome(chunk.sequence, len(chunk.drafts), num_accepted)

    def note_accepted(self, sequence: Sequence) -> None:
        """Mark the sequence's last token, an accepted draft, as computed."""
        sequence.num_computed += 1
        self._cache.note_computed(sequence)

    @property
    def draft_counts(self) -> DraftCounts:
        return DraftCounts() if self._speculation is None else self._speculation.counts

    def remove(self, sequence: Sequence) -> None:
        mine = self._of_sink[sequence.sink]
        del mine[sequence]
        if not mine:
            del self._of_sink[sequence.sink]
        self._num_foreground -= not sequence.rank.is_background
        if sequence.slot >= 0:
            _take_out(self._running, sequence)
            self._cache.end(sequence)
        else:
            _take_out(self._waiting, sequence)

    def sequences(self) -> Iterable[Sequence]:
        return [*self._running, *self._waiting]

    def sequences_of(self, sink: object) -> Collection[Sequence]:
        return tuple(self._of_sink.get(sink, ()))

    @property
    def is_in_background(self) -> bool:
        """Whether all sequences have background priority."""
        return not self._num_foreground

    @property
    def running(self) -> Iterable[Sequence]:
        return tuple(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def seconds_to_wait(self) -> float:
        """Return the seconds until something can run: 0 unless static batching waits for its batch to fill."""
        return 0.0 if self._running else self._admission.seconds_to_wait(self._waiting)

    def _rank(self, sequence: Sequence) -> Rank:
        is_background = sequence.request.priority <= BACKGROUND_PRIORITY
        priority = -sequence.request.priority if self._by_priority else 0
        return Rank(is_background, priority, sequence.submitted_at, sequence.request.index, next(self._arrivals))

    # Chunks

    def _decode_chunks(self) -> list[Chunk]:
        decoding = [s for s in self._running if s.state is SequenceState.DECODE]
        for sequence in decoding:
            if sequence.decodes_since is None:
                sequence.decodes_since = self._done
        return [Chunk(s, 1) for s in decoding if s.slot >= 0 and self._make_room(s, 1)]

    def _num_protected(self, singles: list[Chunk], prefilling: list[Sequence]) -> int:
        """Return how many decoding sequences the prompts must not hold up.

        Those that came in the same burst are not among them: the sooner all its prompts are computed, the sooner the
        whole burst ends. Prompts with background priority never hold up the others.
        """
        first = min((sequence.admitted_at for sequence in prefilling), default=0)
        in_background = all(sequence.rank.is_background for sequence in prefilling)
        return sum(
            (in_background and not chunk.sequence.rank.is_background)
            or since.num_steps + BURST_STEPS < first
            or since.num_prompt_tokens + BURST_TOKENS < self._done.num_prompt_tokens
            for chunk in singles
            if (since := chunk.sequence.decodes_since) is not None
        )

    def _prefilling(self) -> list[Sequence]:
        return [s for s in self._running if s.state is SequenceState.PREFILL]

    def _with_drafts(self, chunks: list[Chunk], speculation: Speculation) -> list[Chunk]:
        """Add drafts to decoding sequences if that needs no preemption."""
        drafts = speculation.drafts([chunk.sequence for chunk in chunks], self._max_drafts)
        return [
            Chunk(chunk.sequence, 1 + len(draft), draft)
            if draft and self._cache.extend(chunk.sequence, 1 + len(draft))
            else chunk
            for chunk, draft in zip(chunks, drafts, strict=True)
        ]

    def _prompt_chunks(self, budget: int) -> list[Chunk]:
        """Share the budget among running prompts: those with the fewest remaining tokens first, and a part for the
        oldest.

        Logits of whole prompts need much memory, so prompts with log-probabilities share READ_PLACES places of a step.
        """
        prefilling = self._prefilling()
        if not prefilling:
            return []
        chunks, oldest = [], prefilling[0]
        reserved = min(oldest.num_pending_tokens, max(1, budget // OLDEST_SHARE))
        num_places = max(1, READ_PLACES // max(1, sum(sequence.reads_places for sequence in prefilling)))
        for sequence in sorted(prefilling, key=self._prompt_rank):
            if sequence is oldest:
                reserved = 0
            num_tokens = min(budget - reserved, sequence.num_pending_tokens, sequence.most_tokens(num_places))
            if num_tokens > 0 and sequence.slot >= 0 and self._make_room(sequence, num_tokens):
                chunks.append(Chunk(sequence, num_tokens))
                budget -= num_tokens
        return chunks

    @staticmethod
    def _prompt_rank(sequence: Sequence) -> tuple[bool, int, int, Rank]:
        rank = sequence.rank
        return rank.is_background, rank.priority, sequence.num_pending_tokens, rank

    def _admit(self) -> int:
        """Start sequences from the queue while rows and memory are available, and return their number.

        A sequence whose prefix a running prompt is computing is deferred until it can reuse that prefix.
        """
        candidates = list(self._admission.candidates(self._waiting, self._running, self._max_running))
        if not candidates:
            return 0
        prefilling = self._prefilling()
        next_keys = _NextKeys()
        for sequence in prefilling if self._shares_prefixes else ():
            next_keys.add(sequence)
        headroom = PREFIX_BLOCK * len(self._running) + sum(sequence.num_pending_tokens for sequence in prefilling)
        num_deferred = 0
        for sequence in candidates:
            with blaming(sequence):
                if next_keys.has_part_of(sequence):
                    num_deferred += 1
                    continue
                if not self._begin(sequence, headroom):
                    break
                _take_out(self._waiting, sequence)
                headroom += PREFIX_BLOCK + sequence.num_pending_tokens
                if self._shares_prefixes:
                    next_keys.add(sequence)
        return num_deferred

    def _begin(self, sequence: Sequence, headroom: int) -> bool:
        """Admit a sequence if, beside its prompt, each running prompt can be computed and each running sequence can
        grow by a block: ``headroom`` tokens.

        While nothing else runs, no more memory can become available, so a sequence that cannot start then fails.
        """
        if not self._cache.begin(sequence, headroom):
            if self._running:
                return False
            if not self._grow_alone(lambda: self._cache.begin(sequence, 0)):
                raise _too_large(sequence)
        if sequence.state is SequenceState.WAITING and not sequence.num_preemptions:
            sequence.num_cached = sequence.num_computed
        sequence.state = SequenceState.PREFILL
        sequence.admitted_at = self._done.num_steps
        insort(self._running, sequence, key=RANK)
        return True

    # Memory

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for the sequence's next tokens. Return False if the sequence itself was preempted."""
        with blaming(sequence):
            while not self._cache.extend(sequence, num_tokens):
                victim = self._running[-1]
                if victim is sequence and len(self._running) == 1:
                    if self._grow_alone(lambda: self._cache.extend(sequence, num_tokens)):
                        break
                    raise _too_large(sequence)
                self._preempt(victim)
                if victim is sequence:
                    return False
        return True

    def _grow_alone(self, take: Callable[[], bool]) -> bool:
        """Retry without the growth limit, if that is allowed for a sequence that runs alone."""
        if self._growth is not Growth.ALONE:
            return False
        self._cache.hold_growth(held=False)
        try:
            return take()
        finally:
            self._cache.hold_growth(held=True)

    def _preempt(self, sequence: Sequence) -> None:
        _take_out(self._running, sequence)
        self._cache.end(sequence)
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        sequence.decodes_since = None
        sequence.state = SequenceState.WAITING
        self.num_preemptions += 1
        insort(self._waiting, sequence, key=RANK)


class _NextKeys:
    """The next block that each running prompt computes, by its place.

    A key covers all tokens before its block, so two prompts share what one of them has yet to compute exactly if they
    share its next block.
    """

    def __init__(self) -> None:
        self._keys: dict[int, set[bytes]] = {}

    def add(self, sequence: Sequence) -> None:
        place = sequence.num_computed // PREFIX_BLOCK
        if place < sequence.num_tokens // PREFIX_BLOCK:
            key = sequence.prefix_keys.at(sequence.token_ids, place)
            if key is not None:
                self._keys.setdefault(place, set()).add(key)

    def has_part_of(self, sequence: Sequence) -> bool:
        """Return whether a running prompt is computing a block that the sequence can reuse."""
        end = sequence.num_reusable // PREFIX_BLOCK
        return any(
            place < end and sequence.prefix_keys.at(sequence.token_ids, place) in keys
            for place, keys in self._keys.items()
        )


def _take_out(queue: list[Sequence], sequence: Sequence) -> None:
    """Remove a sequence from a list in the order of ranks, without a search through all of it."""
    place = bisect_left(queue, sequence.rank, key=RANK)
    assert queue[place] is sequence, "the sequence is in the queue at its rank"
    del queue[place]


def _too_large(sequence: Sequence) -> SequenceFault:
    text = f"The KV cache of this model is too small for {sequence.num_tokens} tokens."
    return SequenceFault(sequence, OUT_OF_MEMORY, text)
