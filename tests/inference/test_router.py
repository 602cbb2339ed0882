"""Which replica gets a request, when replicas are added and removed, and what their numbers add up to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.client import EmbeddingRequest, EngineStats, GenerationRequest, ModelStats
from inference.engine.cache.prefix_keys import PREFIX_BLOCK, PrefixKeys, Programs
from inference.engine.stats import BucketCounts, Distribution, EngineState, ModelLimits, merged
from inference.engine_process.router import (
    MAX_OWNERS,
    MILESTONES,
    OVERLOAD,
    SPARE,
    STEERING_BLOCKS,
    Keys,
    Router,
    routing_keys,
)
from inference.engine_process.scaling import DOWN_FACTOR, ScalingPolicy
from inference.steering_refs import SteeringRef, SteeringSpec

LONG = tuple(range(1000))


@dataclass
class FakeReplica:
    number: int
    num_sequences: int = 0
    slots: int = 16
    kv: float = 0.0
    restarts: int = 0

    @property
    def incarnation(self) -> tuple[int, int]:
        return self.number, self.restarts

    def capacity(self, model: str) -> int:
        return self.slots

    def kv_used_ratio(self, model: str) -> float:
        return self.kv


def prompt(token_ids: tuple[int, ...] = LONG, **fields: object) -> GenerationRequest:
    return GenerationRequest("r", "m", token_ids, **fields)  # type: ignore[arg-type]


def steered(fingerprint: str, program: str) -> SteeringRef:
    return SteeringRef(fingerprint, SteeringSpec(()), prompt_program=program)


@dataclass
class Fleet:
    replicas: list[FakeReplica]
    router: Router = field(default_factory=Router)

    def route(self, request: GenerationRequest | EmbeddingRequest) -> FakeReplica:
        """Send a request where the router says."""
        keys = routing_keys(request)
        chosen = self.router.order(self.replicas, [request], keys)[0]
        self.router.note(chosen, keys)
        chosen.num_sequences += 1
        return chosen


def fleet(count: int, **fields: int) -> Fleet:
    return Fleet([FakeReplica(number, **fields) for number in range(count)])


class TestKeys:
    def test_they_are_those_of_the_engine_s_blocks(self) -> None:
        request = prompt(cache_salt="salt", steering=steered("print", "print:prompt"))
        blocks = PrefixKeys(PREFIX_BLOCK, Programs("print:prompt", "print:generation"), len(LONG) - 1, "salt")
        theirs = blocks.upto(LONG, len(LONG) // PREFIX_BLOCK)
        counts = [count for count in MILESTONES if count <= len(theirs)]
        assert routing_keys(request)[1:] == [(theirs[count - 1], count) for count in counts]

    def test_steering_of_the_prompt_and_salts_separate_prompts_and_steering_of_answers_does_not(self) -> None:
        def keys_of(**fields: Any) -> set[str | bytes]:
            return {key for key, _ in routing_keys(prompt(**fields)) if isinstance(key, bytes)}

        plain = keys_of()
        assert keys_of(steering=steered("print", "")) == plain
        assert not plain & keys_of(steering=steered("print", "print"))
        assert not plain & keys_of(cache_salt="another user")

    def test_short_prompts_and_other_requests_have_none(self) -> None:
        assert routing_keys(prompt(LONG[:PREFIX_BLOCK])) == []
        assert routing_keys(EmbeddingRequest("r", "m", LONG)) == []

    def test_a_long_prompt_has_no_more_keys_than_there_are_milestones(self) -> None:
        assert len(routing_keys(prompt(tuple(range(100_000))))) == len(MILESTONES)


class TestRouter:
    def test_a_conversation_stays_on_its_replica(self) -> None:
        some = fleet(4)
        homes = [some.route(prompt((start, *LONG))) for start in range(4)]
        assert {home.number for home in homes} == {0, 1, 2, 3}
        for home in homes:
            home.num_sequences = 0
        for start, home in enumerate(homes):
            assert some.route(prompt((start, *LONG, 5, 6, 7))) is home
            home.num_sequences = 0

    def test_the_replica_that_knows_most_of_a_prompt_comes_first(self) -> None:
        some = fleet(3)
        for replica, length in zip(some.replicas, (100, 900, 500), strict=True):
            some.router.note(replica, routing_keys(prompt(LONG[:length])))
        assert some.route(prompt()).number == 1

    def test_a_profile_returns_to_where_it_is_compiled_unless_a_longer_prompt_is_elsewhere(self) -> None:
        some = fleet(3)
        request = prompt(steering=steered("print", ""))
        some.router.note(some.replicas[2], [("print", STEERING_BLOCKS)])
        assert some.route(replace(request, prompt_token_ids=(1,))).number == 2
        some.router.note(some.replicas[1], routing_keys(prompt()))
        assert some.route(request).number == 1

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.integers(2, 8))
    def test_affinity_never_overloads_a_replica(self, starts: list[int], count: int) -> None:
        """Sequences never end here."""
        some = fleet(count)
        for total, start in enumerate(starts):
            chosen = some.route(prompt((start, *LONG)))
            least = min(each.num_sequences for each in some.replicas if each is not chosen)
            assert chosen.num_sequences - 1 <= max(least, OVERLOAD * (total + 1) / count + SPARE)

    def test_without_affinity_the_load_is_spread_by_capacity(self) -> None:
        some = Fleet([FakeReplica(0, slots=16), FakeReplica(1, slots=48)])
        counts = Counter(some.route(prompt((start,))).number for start in range(64))
        assert counts == {0: 16, 1: 48}

    def test_a_replica_with_a_full_cache_comes_last(self) -> None:
        some = fleet(2)
        home = some.route(prompt())
        home.kv = 0.99
        assert some.route(prompt()) is not home

    def test_a_process_that_started_again_has_computed_nothing(self) -> None:
        some = fleet(2)
        home = some.route(prompt())
        home.restarts += 1
        home.num_sequences = 1
        assert some.route(prompt()) is not home

    def test_all_candidates_are_returned_so_that_others_can_be_asked(self) -> None:
        some = fleet(5)
        ordered = some.router.order(some.replicas, [prompt()], routing_keys(prompt()))
        assert sorted(each.number for each in ordered) == [0, 1, 2, 3, 4]
        assert some.router.order([], [prompt()], []) == []

    def test_it_remembers_a_bounded_number_of_keys_and_owners(self) -> None:
        router = Router(num_keys=10)
        for start in range(100):
            router.note(FakeReplica(start), routing_keys(prompt((start, *LONG))))
        assert len(router) == 10
        keys: Keys = [("print", STEERING_BLOCKS)]
        for number in range(100):
            router.note(FakeReplica(number), keys)
        some = [FakeReplica(number, num_sequences=number % 2) for number in range(100)]
        assert router.order(some, [prompt()], keys)[0].number == 96  # of the MAX_OWNERS latest, the one with less load
        assert MAX_OWNERS == 4


class TestScaling:
    def run(self, policy: ScalingPolicy, replicas: int, seconds: int, **load: int) -> int:
        """Return the number of replicas after a steady load. Each runs ten sequences at once."""
        self.now = getattr(self, "now", 0)
        for _ in range(seconds):
            self.now += 1
            replicas = policy.decide(
                self.now,
                replicas=replicas,
                waiting=load.get("waiting", 0),
                running=load.get("running", 0),
                capacity=10 * replicas,
            )
        return replicas

    def test_it_adds_one_replica_at_a_time_while_requests_wait_and_removes_them_much_later(self) -> None:
        policy = ScalingPolicy(1, 3, patience_s=5)
        assert self.run(policy, 1, 5, waiting=1) == 1
        assert self.run(policy, 1, 1, waiting=1) == 2
        assert self.run(policy, 2, 60, waiting=1) == 3
        assert self.run(policy, 3, 5 * DOWN_FACTOR) == 3
        assert self.run(policy, 3, 5 * DOWN_FACTOR) == 2
        assert self.run(policy, 2, 500) == 1

    def test_a_short_queue_changes_nothing(self) -> None:
        policy = ScalingPolicy(1, 3, patience_s=5)
        for _ in range(20):
            assert self.run(policy, 1, 4, waiting=9) == 1
            assert self.run(policy, 1, 1) == 1

    @pytest.mark.parametrize("running", range(0, 31, 3))
    def test_a_steady_load_ends_in_a_steady_number(self, running: int) -> None:
        policy = ScalingPolicy(1, 3, patience_s=5)
        replicas, seen = 1, []
        for _ in range(600):
            waiting = max(0, running - 10 * replicas)
            replicas = self.run(policy, replicas, 1, waiting=waiting, running=min(running, 10 * replicas))
            seen.append(replicas)
        assert set(seen[300:]) == {seen[-1]}

    def test_it_counts_no_room_while_no_model_is_loaded(self) -> None:
        policy = ScalingPolicy(1, 3, patience_s=1)
        assert policy.decide(0, replicas=1, waiting=0, running=0, capacity=0) == 1


def model(**fields: object) -> ModelStats:
    return ModelStats("m", ModelLimits(max_batch_size=16, kv_bytes=100), **fields)  # type: ignore[arg-type]


class TestMergedStats:
    def test_counts_are_sums_limits_are_those_of_one_and_the_ratio_is_the_mean(self) -> None:
        steps = BucketCounts((1.0, 2.0))
        steps.add(1.5)
        some = model(running=2, waiting=1, kv_used_ratio=0.2, step_faults={"oom": 1}, step_seconds=steps.read())
        engines = [EngineStats("running", running=2, free_slots=14, models=("m",), by_model=(some,)) for _ in range(3)]
        whole = merged(engines)
        (found,) = whole.by_model
        assert (whole.running, whole.free_slots, whole.models) == (6, 42, ("m",))
        assert (found.running, found.waiting, found.replicas) == (6, 3, 3)
        assert found.kv_used_ratio == pytest.approx(0.2)
        assert found.limits == some.limits
        assert found.step_faults == {"oom": 3}
        assert found.step_seconds == Distribution((1.0, 2.0), (0, 3, 0), 4.5)

    @pytest.mark.parametrize(
        ("states", "whole"),
        [
            (("idle", "running"), "running"),
            (("failed", "idle"), "idle"),
            (("starting", "failed"), "starting"),
            (("stopped", "draining"), "draining"),
            (("stopped", "stopped"), "stopped"),
        ],
    )
    def test_it_is_up_as_long_as_one_is(self, states: tuple[EngineState, ...], whole: EngineState) -> None:
        engines = [EngineStats(state, error=f"It is {state}." if state == "failed" else "") for state in states]
        assert merged(engines).state == whole
        assert merged(engines).error == ("It is failed." if "failed" in states else "")
