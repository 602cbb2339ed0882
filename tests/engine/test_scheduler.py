"""The policy alone: no model, no tensors."""

from __future__ import annotations

from typing import Any

import torch

from inference.engine.config import EngineConfig
from inference.engine.detokenizer import Detokenizer, TokenDecoder
from inference.engine.request import RequestState, Sequence
from inference.engine.scheduler import Chunk, ContinuousScheduler
from tests.builders import build_request


class WordTokenizer:
    """Never asked for text here."""

    def decode(self, ids, skip_special_tokens=True) -> str:
        raise AssertionError("scheduling needs no text")


class Slots:
    """A pool that only counts."""

    def __init__(self, count: int) -> None:
        self.free = list(range(count))

    @property
    def num_free(self) -> int:
        return len(self.free)

    def allocate(self) -> int:
        return self.free.pop()

    def release(self, slot: int) -> None:
        self.free.append(slot)


def sequence(num_prompt: int = 4) -> Sequence:
    request = build_request(tuple(range(num_prompt)))
    detokenizer = Detokenizer(TokenDecoder(WordTokenizer()))
    return Sequence(request, object(), 0.0, 8, detokenizer, torch.Generator())


def scheduler(slots: int = 4, **config: Any) -> ContinuousScheduler:
    return ContinuousScheduler(EngineConfig(**{"max_batch_size": slots, **config}), Slots(slots))


def run(chunks: list[Chunk]) -> None:
    """What the engine does after a step."""
    for chunk in chunks:
        samples = chunk.samples
        chunk.sequence.num_computed += chunk.num_tokens
        if samples:
            chunk.sequence.state = RequestState.DECODE
            chunk.sequence.token_ids.append(9)


def test_first_come_first_served():
    policy = scheduler(slots=2)
    sequences = [sequence() for _ in range(3)]
    for s in sequences:
        policy.add(s)
    assert [c.sequence for c in policy.schedule()] == sequences[:2]
    assert policy.num_waiting == 1
    policy.remove(sequences[0])
    assert [c.sequence for c in policy.schedule()] == sequences[1:]


def test_prompts_share_the_budget_and_decoding_never_waits():
    policy = scheduler(max_prefill_tokens=6)
    decoding, long, short = sequence(2), sequence(10), sequence(4)
    policy.add(decoding)
    run(policy.schedule())
    policy.add(long)
    policy.add(short)
    steps = []
    for _ in range(3):
        chunks = policy.schedule()
        steps.append([(c.sequence, c.num_tokens) for c in chunks])
        run(chunks)
    assert steps[0] == [(decoding, 1), (long, 6)]
    assert steps[1] == [(decoding, 1), (long, 4), (short, 2)]
    assert steps[2] == [(decoding, 1), (long, 1), (short, 2)]


def test_a_chunk_samples_only_when_nothing_is_left():
    policy = scheduler(max_prefill_tokens=3)
    policy.add(sequence(5))
    first = policy.schedule()
    assert not first[0].samples
    run(first)
    assert policy.schedule()[0].samples


def test_waiting_sequences_can_be_removed():
    policy = scheduler(slots=1)
    a, b = sequence(), sequence()
    policy.add(a)
    policy.add(b)
    policy.schedule()
    policy.remove(b)
    policy.remove(a)
    assert (policy.num_running, policy.num_waiting) == (0, 0)
    assert policy.schedule() == []


def test_batch_size_limits_even_when_slots_are_free():
    policy = ContinuousScheduler(EngineConfig(max_batch_size=1), Slots(4))
    policy.add(sequence())
    policy.add(sequence())
    assert len(policy.schedule()) == 1
