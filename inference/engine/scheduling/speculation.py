"""Choose the drafted tokens that a step verifies beside the next token of each sequence."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from inference.engine.config import EngineConfig
from inference.engine.scheduling.budgets import DraftBudget
from inference.engine.scheduling.drafter import Drafter, PromptLookup
from inference.engine.scheduling.sequence import Sequence, blaming


@dataclass(slots=True)
class DraftCounts:
    """Counts since the start: drafts that ran, their tokens, and their accepted tokens."""

    drafts: int = 0
    tokens: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Speculation:
    """Proposes drafts, and learns from their acceptance."""

    config: EngineConfig
    counts: DraftCounts = field(default_factory=DraftCounts)
    _budget: DraftBudget = field(init=False)

    def __post_init__(self) -> None:
        self._budget = DraftBudget(self.config.min_speculative_gain)

    def drafts(self, sequences: Many[Sequence], room: int) -> list[tuple[int, ...]]:
        """Return the tokens to verify after the last one of each decoding sequence; at most ``room`` in total."""
        proposed = [self._proposal_or_fault(sequence) for sequence in sequences]
        if not any(proposed):
            return proposed
        tokens = [
            (_drafter(sequences[i]).chance ** depth, i)
            for i, draft in enumerate(proposed)
            for depth in range(1, len(draft) + 1)
        ]
        tokens = sorted(tokens, key=lambda token: -token[0])[:room]
        num_taken = self._budget.num_drafts(len(sequences), [chance for chance, _ in tokens])
        lengths = [0] * len(sequences)
        for _, i in tokens[:num_taken]:
            lengths[i] += 1
        for sequence, draft, length in zip(sequences, proposed, lengths, strict=True):
            if draft and not length:
                _drafter(sequence).note_unused(sequence.num_tokens, draft[0])
        return [draft[:length] for draft, length in zip(proposed, lengths, strict=True)]

    def note_step(self, num_tokens: int, seconds: float) -> None:
        """Record the duration of a step without prompt tokens."""
        self._budget.note(num_tokens, seconds)

    def note_outcome(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        _drafter(sequence).note(num_drafted, num_accepted)
        self.counts.drafts += 1
        self.counts.tokens += num_drafted
        self.counts.accepted += num_accepted

    def _proposal_or_fault(self, sequence: Sequence) -> tuple[int, ...]:
        with blaming(sequence):
            return self._proposal(sequence)

    def _proposal(self, sequence: Sequence) -> tuple[int, ...]:
        """Return drafted tokens that may all be accepted: without tokens that end the sequence, and within its maximum
        length."""
        room = sequence.max_tokens - sequence.num_generated - 1
        if room < 1 or not sequence.allows_drafts:
            return ()
        if sequence.drafter is None:
            lookup = PromptLookup(self.config.prompt_lookup_min, self.config.prompt_lookup_max)
            sequence.drafter = Drafter(lookup)
        count = min(room, self.config.num_speculative_tokens)
        draft = sequence.drafter.propose(sequence.token_ids, count)
        ends = (place for place, token in enumerate(draft) if token in sequence.stop_ids)
        return draft[: next(ends, None)]


def _drafter(sequence: Sequence) -> Drafter:
    assert sequence.drafter is not None, "a sequence with drafts has a drafter"
    return sequence.drafter
