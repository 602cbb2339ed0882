"""The policies alone: no model, no tensors. Names of document 003's cases are kept."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from inference.engine.cache.contiguous import ContiguousCache
from inference.engine.cache.paged import PagedCache
from inference.engine.cache.prefix_keys import PREFIX_BLOCK
from inference.engine.config import EngineConfig
from inference.engine.messages import BACKGROUND_PRIORITY
from inference.engine.scheduling import scheduler
from inference.engine.scheduling.admission import Admission, ContinuousAdmission, StaticAdmission
from inference.engine.scheduling.scheduler import BURST_STEPS, Chunk, Scheduler
from inference.engine.scheduling.sequence import Sequence, SequenceState
from tests.engine.sequences import build_sequence, compute

LENGTH = 8 * PREFIX_BLOCK


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Policy(Scheduler):
    """A scheduler over a real cache policy, and the rest of a step."""

    def __init__(self, config: EngineConfig, admission: Admission, backend: str, blocks: int) -> None:
        rows = config.max_batch_size
        self.cache: Any = (
            PagedCache(rows, LENGTH, (0,), (blocks,), prefixes=False)
            if backend == "paged"
            else ContiguousCache(rows, LENGTH, (0,), (1,), blocks * PREFIX_BLOCK, prefixes=False)
        )
        super().__init__(config, self.cache, admission)

    def step(self) -> list[tuple[Sequence, int]]:
        chunks = self.schedule()
        compute(chunks)
        self.note_step(chunks, 0.0)
        self.cache.check_integrity(self.running)
        return [(c.sequence, c.num_tokens) for c in chunks]

    def add_all(self, *sequences: Sequence) -> list[Sequence]:
        for sequence in sequences:
            self.add(sequence)
        return list(sequences)

    def finish(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self.remove(sequence)
            sequence.state = SequenceState.FINISHED


@pytest.fixture(params=["contiguous", "paged"])
def backend(request) -> str:
    return request.param


@pytest.fixture
def make_static(backend, clock):
    def make(timeout_s: float = 0.01, blocks: int = 64, **config: Any) -> Policy:
        settings = EngineConfig(batching_mode="static", **{"max_batch_size": 4, **config})
        return Policy(settings, StaticAdmission(timeout_s, settings.max_batch_size, clock), backend, blocks)

    return make


@pytest.fixture
def make_continuous(backend):
    def make(blocks: int = 64, **config: Any) -> Policy:
        settings = EngineConfig(**{"max_batch_size": 4, **config})
        return Policy(settings, ContinuousAdmission(), backend, blocks)

    return make


@pytest.fixture(params=["continuous", "static"])
def make(request, make_continuous, make_static, clock):
    """Either mode; the static one does not wait for company."""
    clock.now = 1e9
    return make_continuous if request.param == "continuous" else make_static


def sequences_of(chunks: list[Chunk] | list[tuple[Sequence, int]]) -> list[Sequence]:
    return [c.sequence if isinstance(c, Chunk) else c[0] for c in chunks]


class TestBothModes:
    def test_basic_batch_formation(self, make):
        policy = make()
        added = policy.add_all(*(build_sequence() for _ in range(3)))
        assert sequences_of(policy.step()) == added
        assert (policy.num_running, policy.num_waiting) == (3, 0)
        assert sequences_of(policy.step()) == added, "the batch is still active"

    def test_batch_completion(self, make):
        policy = make()
        added = policy.add_all(build_sequence(), build_sequence())
        policy.step()
        policy.finish(*added)
        assert policy.step() == []
        assert (policy.num_running, policy.num_waiting) == (0, 0)

    def test_partial_completion(self, make):
        policy = make()
        a, b, c = policy.add_all(*(build_sequence() for _ in range(3)))
        policy.step()
        policy.finish(a, c)
        assert policy.step() == [(b, 1)]
        policy.finish(b)
        assert policy.step() == []

    def test_fcfs_ordering(self, make):
        policy = make(max_batch_size=2)
        added = policy.add_all(*(build_sequence() for _ in range(3)))
        assert sequences_of(policy.step()) == added[:2]
        policy.finish(*added[:2])
        assert sequences_of(policy.step()) == added[2:]

    def test_batch_size_limit(self, make):
        policy = make(max_batch_size=2)
        policy.add_all(*(build_sequence() for _ in range(5)))
        sizes = []
        while policy.num_running or policy.num_waiting:
            sizes.append(len(policy.step()))
            policy.finish(*policy.running)
        assert sizes == [2, 2, 1]

    def test_waiting_and_running_sequences_can_be_removed(self, make):
        policy = make(max_batch_size=1)
        a, b = policy.add_all(build_sequence(), build_sequence())
        policy.step()
        policy.finish(b, a)
        assert (policy.num_running, policy.num_waiting) == (0, 0)
        assert policy.step() == []

    def test_prompts_share_the_budget_and_single_tokens_come_first(self, make):
        policy = make(max_prefill_tokens=6)
        short, long = policy.add_all(build_sequence(2), build_sequence(9))
        assert policy.step() == [(short, 2), (long, 4)]
        assert policy.step() == [(short, 1), (long, 5)]
        assert policy.step() == [(short, 1), (long, 1)]

    def test_a_chunk_samples_only_when_nothing_is_left(self, make):
        policy = make(max_prefill_tokens=3)
        policy.add(build_sequence(5))
        first = policy.schedule()
        assert not first[0].samples
        compute(first)
        assert policy.schedule()[0].samples

    def test_preempted_sequences_wait_at_the_front_and_are_computed_anew(self, make):
        policy = make(blocks=4)
        old, young = policy.add_all(build_sequence(2 * PREFIX_BLOCK - 1), build_sequence(PREFIX_BLOCK + 1))
        policy.step()
        for _ in range(PREFIX_BLOCK):
            policy.step()
            if young.num_preemptions:
                break
        assert old.num_preemptions == 0
        assert (young.state, young.num_computed, young.slot) == (SequenceState.WAITING, 0, -1)
        late = build_sequence(PREFIX_BLOCK)
        policy.add(late)
        assert sequences_of(policy.step()) == [old], "nobody overtakes the one that gave way"
        policy.finish(old)
        num_tokens = young.num_tokens
        assert (young, num_tokens) in policy.step()

    def test_short_memory_never_deadlocks(self, make):
        policy = make(blocks=6, max_prefill_tokens=PREFIX_BLOCK)
        left = set(policy.add_all(*(build_sequence(3 * PREFIX_BLOCK) for _ in range(6))))
        for _ in range(2000):
            policy.step()
            done = {s for s in left if s.num_generated >= 2 * PREFIX_BLOCK}
            policy.finish(*done)
            left -= done
            if not left:
                return
        raise AssertionError(f"{len(left)} sequences never ended")


class TestContinuous:
    def test_newcomers_join_a_running_batch(self, make_continuous):
        policy = make_continuous()
        a = build_sequence()
        policy.add(a)
        policy.step()
        b = build_sequence(3)
        policy.add(b)
        assert policy.step() == [(a, 1), (b, 3)]
        assert policy.seconds_to_wait() == 0

    def test_priority_goes_before_arrival_when_asked(self, make_continuous):
        policy = make_continuous(max_batch_size=1, scheduler_policy="priority")
        low, high, higher = policy.add_all(*(build_sequence(priority=p) for p in (0, 1, 5)))
        order = []
        while policy.num_waiting or policy.num_running:
            order += sequences_of(policy.step())
            policy.finish(*policy.running)
        assert order == [higher, high, low]

    def test_fcfs_ignores_priority(self, make_continuous):
        policy = make_continuous(max_batch_size=1)
        low, _ = policy.add_all(build_sequence(priority=0), build_sequence(priority=9))
        assert sequences_of(policy.step()) == [low]

    @pytest.mark.parametrize("scheduler_policy", ["fcfs", "priority"])
    def test_the_background_is_behind_everybody_under_every_policy(self, make_continuous, scheduler_policy):
        policy = make_continuous(max_batch_size=1, scheduler_policy=scheduler_policy)
        priorities = (BACKGROUND_PRIORITY, -(2**15))
        _, normal = policy.add_all(*(build_sequence(priority=one) for one in priorities))
        assert sequences_of(policy.step()) == [normal]

    def test_the_lowest_priority_gives_way(self, make_continuous):
        policy = make_continuous(blocks=4, scheduler_policy="priority")
        low, high = policy.add_all(
            build_sequence(2 * PREFIX_BLOCK - 2, priority=0), build_sequence(PREFIX_BLOCK - 2, priority=1)
        )
        for _ in range(2 * PREFIX_BLOCK):
            policy.step()
        assert low.num_preemptions > 0
        assert high.num_preemptions == 0

    def test_admission_leaves_room_to_grow(self, make_continuous):
        policy = make_continuous(blocks=4)
        running, waiting = policy.add_all(build_sequence(2 * PREFIX_BLOCK - 4), build_sequence(2 * PREFIX_BLOCK - 4))
        assert sequences_of(policy.step()) == [running]
        assert waiting.state is SequenceState.WAITING


class TestStatic:
    def test_bounded_wait_dispatches_early_when_full(self, make_static, clock):
        policy = make_static(timeout_s=1.0)
        added = policy.add_all(*(build_sequence(submitted_at=clock.now) for _ in range(4)))
        assert policy.seconds_to_wait() == 0
        assert sequences_of(policy.step()) == added

    def test_bounded_wait_dispatches_on_timeout(self, make_static, clock):
        policy = make_static(timeout_s=0.01)
        added = policy.add_all(*(build_sequence(submitted_at=clock.now) for _ in range(2)))
        assert policy.step() == []
        assert policy.seconds_to_wait() == pytest.approx(0.01)
        clock.now += 0.015
        assert policy.seconds_to_wait() == 0
        assert sequences_of(policy.step()) == added

    def test_bounded_wait_timer_resets_between_batches(self, make_static, clock):
        policy = make_static(timeout_s=0.01)
        policy.add(build_sequence(submitted_at=clock.now))
        clock.now += 0.02
        policy.step()
        policy.finish(*policy.running)
        policy.add(build_sequence(submitted_at=clock.now))
        assert policy.step() == []
        assert policy.seconds_to_wait() == pytest.approx(0.01)

    def test_newcomers_wait_for_the_end_of_the_batch(self, make_static, clock):
        policy = make_static(timeout_s=0.0)
        a = build_sequence(submitted_at=clock.now)
        policy.add(a)
        policy.step()
        b = build_sequence(submitted_at=clock.now)
        policy.add(b)
        assert policy.step() == [(a, 1)]
        policy.finish(a)
        assert sequences_of(policy.step()) == [b]

    def test_members_that_memory_could_not_take_at_once_still_belong_to_the_batch(self, make_static, clock):
        policy = make_static(timeout_s=0.0, blocks=4)
        a, b = policy.add_all(*(build_sequence(2 * PREFIX_BLOCK, submitted_at=clock.now) for _ in range(2)))
        assert sequences_of(policy.step()) == [a]
        late = build_sequence(4, submitted_at=clock.now)
        policy.add(late)
        policy.finish(a)
        assert sequences_of(policy.step()) == [b]
        policy.finish(b)
        assert sequences_of(policy.step()) == [late]


class TestDrafts:
    ON: ClassVar[dict[str, Any]] = {"speculative_method": "prompt_lookup", "min_speculative_gain": 0.0}

    def test_a_draft_stands_behind_the_sequence_s_last_token(self, make):
        policy = make(**self.ON)
        (sequence,) = policy.add_all(build_sequence((9,) * 30))
        assert policy.step() == [(sequence, 30)]
        (chunk,) = policy.schedule()
        assert (chunk.num_tokens, chunk.num_own, chunk.num_sampled, chunk.drafts) == (5, 1, 5, (9,) * 4)

    def test_all_drafts_of_a_step_share_its_tokens(self, make):
        policy = make(**self.ON, max_prefill_tokens=6)
        policy.add_all(*(build_sequence((9,) * 3) for _ in range(2)))
        policy.step()
        assert sum(len(chunk.drafts) for chunk in policy.schedule()) == 6

    def test_nobody_gives_way_for_a_draft(self, make):
        policy = make(**self.ON, blocks=1)
        (sequence,) = policy.add_all(build_sequence((9,) * (PREFIX_BLOCK - 2)))
        policy.step()
        assert policy.step() == [(sequence, 1)]
        assert policy.num_preemptions == 0


class TestBookkeeping:
    def test_sequences_of_a_sink_are_known_until_they_are_removed(self, make):
        policy = make(max_batch_size=1)
        first, second, other = (build_sequence() for _ in range(3))
        second.sink = first.sink
        policy.add_all(first, second, other)
        policy.step()
        assert list(policy.sequences_of(first.sink)) == [first, second]
        policy.finish(first)
        assert list(policy.sequences_of(first.sink)) == [second]
        policy.finish(second, other)
        assert not policy.sequences_of(first.sink)
        assert not policy._of_sink

    def test_equal_ranks_keep_the_order_of_arrival(self, make):
        policy = make(max_batch_size=8)
        added = policy.add_all(*(build_sequence(submitted_at=0.0) for _ in range(6)))
        policy.finish(added.pop(3))
        assert sequences_of(policy.step()) == added

    def test_the_batch_is_in_the_background_while_nothing_else_waits_or_runs(self, make):
        policy = make(max_batch_size=1)
        assert policy.is_in_background
        behind, normal = policy.add_all(build_sequence(priority=BACKGROUND_PRIORITY), build_sequence())
        assert not policy.is_in_background
        policy.step()
        policy.finish(normal)
        assert policy.is_in_background
        policy.finish(behind)


class TestBursts:
    """A step takes 10 ms and 1 ms for each prompt token; with a stall factor of 2, older sequences allow 16 tokens."""

    @pytest.fixture
    def policy(self, make_continuous) -> Policy:
        policy = make_continuous(max_prefill_tokens=64, max_batch_size=8, blocks=64)
        self.run(policy, build_sequence(2), num_steps=3)  # learns both costs
        return policy

    @staticmethod
    def run(policy: Policy, *sequences: Sequence, num_steps: int) -> list[list[tuple[Sequence, int]]]:
        steps = []
        policy.add_all(*sequences)
        for _ in range(num_steps):
            chunks = policy.schedule()
            num_prompt_tokens = sum(c.num_tokens for c in chunks if c.num_tokens > 1)
            compute(chunks)
            policy.note_step(chunks, 0.01 + 0.001 * num_prompt_tokens)
            steps.append([(c.sequence, c.num_tokens) for c in chunks])
        return steps

    @staticmethod
    def tokens_of(steps: list[list[tuple[Sequence, int]]], sequence: Sequence) -> list[int]:
        return [num_tokens for step in steps for s, num_tokens in step if s is sequence]

    def test_prompts_of_a_burst_do_not_wait_for_its_answers(self, policy):
        policy.finish(*policy.running)
        short, long = build_sequence(10), build_sequence(110)
        assert self.run(policy, short, long, num_steps=3) == [
            [(short, 10), (long, 54)],
            [(short, 1), (long, 56)],
            [(short, 1), (long, 1)],
        ]

    def test_a_request_that_comes_a_step_later_is_of_the_same_burst(self, policy):
        policy.finish(*policy.running)
        early, late = build_sequence(10), build_sequence(110)
        self.run(policy, early, num_steps=2)
        assert self.tokens_of(self.run(policy, late, num_steps=2), late) == [64, 46]

    def test_older_sequences_are_protected(self, policy):
        self.run(policy, num_steps=BURST_STEPS + 1)
        late = build_sequence(110)
        assert self.tokens_of(self.run(policy, late, num_steps=4), late) == [16, 16, 16, 16]

    def test_a_burst_holds_up_its_answers_only_for_so_many_tokens(self, policy, monkeypatch):
        monkeypatch.setattr(scheduler, "BURST_TOKENS", 60)
        policy.finish(*policy.running)
        short, long = build_sequence(10), build_sequence(120)
        steps = self.run(policy, short, long, num_steps=4)
        assert self.tokens_of(steps, long) == [54, 64, 2, 1]
        longer = build_sequence(120)
        assert self.tokens_of(self.run(policy, longer, num_steps=2), longer) == [16, 16]

    def test_background_prompts_never_hold_up_others(self, policy):
        policy.finish(*policy.running)
        short, background = build_sequence(10), build_sequence(110, priority=BACKGROUND_PRIORITY)
        steps = self.run(policy, short, background, num_steps=3)
        assert self.tokens_of(steps, background) == [54, 16, 16]
