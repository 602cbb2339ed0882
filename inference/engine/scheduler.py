"""Who runs in the next step: continuous batching with chunked prefill, first come first served.

All decoding sequences run in each step, one token each. Prompts share a budget of ``max_prefill_tokens`` a step, so
decoding never waits for more than one chunk however long a prompt is. Knows nothing of tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from inference.engine.config import EngineConfig
from inference.engine.request import RequestState, Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """``num_tokens`` tokens of a sequence, from its first one not computed yet. Samples when none are left."""

    sequence: Sequence
    num_tokens: int

    @property
    def samples(self) -> bool:
        return self.num_tokens == self.sequence.num_left


class SlotPool(Protocol):
    """The part of a cache that scheduling needs."""

    @property
    def num_free(self) -> int: ...

    def allocate(self) -> int: ...

    def release(self, slot: int) -> None: ...


class Scheduler(Protocol):
    """A policy. ``schedule`` is called once a step, ``remove`` when a sequence ended or was cancelled."""

    def add(self, sequence: Sequence) -> None: ...

    def schedule(self) -> list[Chunk]: ...

    def remove(self, sequence: Sequence) -> None: ...

    def sequences(self) -> Iterable[Sequence]: ...

    def used_slots(self) -> set[int]: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_running(self) -> int: ...


class ContinuousScheduler:
    """The ``continuous`` batching mode."""

    def __init__(self, config: EngineConfig, slots: SlotPool) -> None:
        self._config = config
        self._slots = slots
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def schedule(self) -> list[Chunk]:
        self._admit()
        decoding = [Chunk(s, 1) for s in self._running if s.state is RequestState.DECODE]
        return decoding + self._prefill_chunks()

    def remove(self, sequence: Sequence) -> None:
        if sequence.slot >= 0:
            self._running.remove(sequence)
            self._slots.release(sequence.slot)
            sequence.slot = -1
        else:
            self._waiting.remove(sequence)

    def sequences(self) -> Iterable[Sequence]:
        return [*self._running, *self._waiting]

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def used_slots(self) -> set[int]:
        return {s.slot for s in self._running}

    def _admit(self) -> None:
        while self._waiting and self._slots.num_free and len(self._running) < self._config.max_batch_size:
            sequence = self._waiting.popleft()
            sequence.slot = self._slots.allocate()
            sequence.state = RequestState.PREFILL
            self._running.append(sequence)

    def _prefill_chunks(self) -> list[Chunk]:
        budget, chunks = self._config.max_prefill_tokens, []
        for sequence in self._running:
            if sequence.state is RequestState.PREFILL and budget > 0:
                chunk = Chunk(sequence, min(budget, sequence.num_left))
                chunks.append(chunk)
                budget -= chunk.num_tokens
        return chunks
