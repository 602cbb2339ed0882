"""A simulation of the router for many replicas: ``python -m benchmarks.routing``.

10,000 streams of 100,000 profiles run at once on 64 replicas, each with a prefix cache and a cache of compiled steering
that drop what was not used for longest. The router, the keys and the requests are real; replicas only count. It shows
how many decisions a second the server makes, what the router remembers in memory, and how much of the prompts and of
the steering the replicas have already, compared with the least loaded replica and with taking turns. Last, how many
events and reports of the replicas one server process can take in, without HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import random
import threading
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.options import at_least_one
from benchmarks.record import RESULTS, Record
from benchmarks.subject import echo
from inference.engine.cache.prefix_keys import PREFIX_BLOCK
from inference.engine.messages import FinishedEvent, GenerationRequest, SamplingParams, Timings, TokensEvent, Usage
from inference.engine.stats import EngineStats, ModelStats, merged
from inference.engine_process.channel import Events, Message, packed, unpacked
from inference.engine_process.router import KEYS_PER_REPLICA, Keys, Router, routing_keys
from inference.event_stream import OpenStreams
from inference.steering_refs import SteeringRef, SteeringSpec

REPLICAS, STREAMS, PROFILES = 64, 10_000, 100_000
SLOTS = 256  # of a replica
CACHED_BLOCKS = 8_192  # prompts of 262,144 tokens
COMPILED = 1_024  # profiles
TEMPLATES = 500  # beginnings of prompts that users share
TURNS = 4
SEED = 1
SUBMITTED = SamplingParams(max_tokens=256)


@dataclass(slots=True)
class SimulatedReplica:
    """Counts what a replica has to compute and compile."""

    number: int
    num_sequences: int = 0
    peak: int = 0
    blocks: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)
    compiled: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)

    @property
    def incarnation(self) -> int:
        return self.number

    def capacity(self, model: str) -> int:
        return SLOTS

    def kv_used_ratio(self, model: str) -> float:
        return min(1.0, self.num_sequences / SLOTS)

    def run(self, visit: Visit) -> tuple[int, bool]:
        """Begin a request. Return how many of its blocks are cached, and whether its steering is compiled."""
        self.num_sequences += 1
        self.peak = max(self.peak, self.num_sequences)
        cached = next((i for i, block in enumerate(visit.blocks) if block not in self.blocks), len(visit.blocks))
        for block in visit.blocks:
            _use(self.blocks, block, CACHED_BLOCKS)
        is_compiled = visit.profile in self.compiled
        _use(self.compiled, visit.profile, COMPILED)
        return cached, is_compiled


def _use(cache: OrderedDict[Hashable, None], key: Hashable, size: int) -> None:
    cache.pop(key, None)
    cache[key] = None
    if len(cache) > size:
        cache.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Visit:
    """A turn of a conversation. ``blocks`` identify the blocks of its prompt."""

    request: GenerationRequest
    profile: int
    blocks: tuple[Hashable, ...]


class Traffic:
    """Conversations of TURNS turns: a shared beginning, a profile, and messages. A few profiles get most requests."""

    def __init__(self, profiles: int) -> None:
        self._random = random.Random(SEED)  # noqa: S311 - no secrets
        self._profiles = profiles
        self._templates = [
            tuple(self._random.choices(range(50_000), k=PREFIX_BLOCK * self._random.randint(2, 24)))
            for _ in range(TEMPLATES)
        ]
        self._open: list[tuple[int, tuple[int, ...], int]] = []

    def next(self) -> Visit:
        """Continue one of the open conversations, or begin one."""
        if self._open and self._random.random() < 1 - 1 / TURNS:
            place = self._random.randrange(len(self._open))
            self._open[place], self._open[-1] = self._open[-1], self._open[place]
            profile, tokens, turn = self._open.pop()
        else:
            profile = int(self._profiles ** self._random.random())
            tokens, turn = self._templates[profile % TEMPLATES], 0
        tokens = (*tokens, *self._random.choices(range(50_000), k=self._random.randint(20, 400)))
        if turn < TURNS:
            self._open.append((profile, tokens, turn + 1))
            if len(self._open) > 4 * STREAMS:
                self._open.pop(0)
        ref = SteeringRef(f"profile-{profile}", SteeringSpec(()))
        return Visit(GenerationRequest("r", "m", tokens, SUBMITTED, ref), profile, _blocks(tokens))


def _blocks(tokens: Sequence[int]) -> tuple[Hashable, ...]:
    chain, found = 0, []
    for end in range(PREFIX_BLOCK, len(tokens), PREFIX_BLOCK):
        chain = hash((chain, tokens[end - PREFIX_BLOCK : end]))
        found.append(chain)
    return tuple(found)


Choose = Callable[[Visit], SimulatedReplica]


def simulate(replicas: list[SimulatedReplica], choose: Choose, *, streams: int, profiles: int, visits: int) -> Outcome:
    """Keep ``streams`` running until ``visits`` of them began after the first ones."""
    traffic = Traffic(profiles)
    durations = random.Random(SEED)  # noqa: S311 - no secrets
    ends: list[tuple[float, int, SimulatedReplica]] = []
    now, blocks, cached, compiled, deciding_s, worst = 0.0, 0, 0, 0, 0.0, 0.0
    for count in itertools.count():
        if count == streams + visits:
            break
        visit = traffic.next()
        begun = time.process_time()
        replica = choose(visit)
        spent = time.process_time() - begun
        had, was_compiled = replica.run(visit)
        heapq.heappush(ends, (now + durations.expovariate(1.0), count, replica))
        if count < streams:
            continue
        now, _, ended = heapq.heappop(ends)
        ended.num_sequences -= 1
        blocks, cached, compiled = blocks + len(visit.blocks), cached + had, compiled + was_compiled
        deciding_s += spent
        worst = max(worst, max(each.num_sequences for each in replicas) * len(replicas) / streams)
    return Outcome(cached / blocks, compiled / visits, worst, visits / deciding_s if deciding_s else 0.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Shares of the blocks and of the steering that the chosen replica had; the highest load of a replica relative to
    the mean; and decisions a second.
    """

    cached: float
    compiled: float
    worst_load: float
    decisions_per_s: float


def routed(router: Router, replicas: list[SimulatedReplica]) -> Choose:
    def choose(visit: Visit) -> SimulatedReplica:
        keys: Keys = routing_keys(visit.request)
        chosen = router.order(replicas, [visit.request], keys)[0]
        router.note(chosen, keys)
        return chosen

    return choose


def record(
    replicas: int = REPLICAS, streams: int = STREAMS, profiles: int = PROFILES, visits: int = 3 * STREAMS
) -> Record:
    values: dict[str, float] = {}
    fleets = [[SimulatedReplica(number) for number in range(replicas)] for _ in range(3)]
    router = Router(KEYS_PER_REPLICA * replicas)
    turns = itertools.cycle(fleets[2])
    policies: dict[str, tuple[list[SimulatedReplica], Choose]] = {
        "router": (fleets[0], routed(router, fleets[0])),
        "least_loaded": (fleets[1], lambda visit: min(fleets[1], key=lambda each: each.num_sequences)),
        "in_turns": (fleets[2], lambda visit: next(turns)),
    }
    for name, (fleet, choose) in policies.items():
        outcome = simulate(fleet, choose, streams=streams, profiles=profiles, visits=visits)
        values[f"{name}_cached_share_of_prompts"] = outcome.cached
        values[f"{name}_compiled_share_of_steering"] = outcome.compiled
        values[f"{name}_highest_load_relative_to_mean"] = outcome.worst_load
        if name == "router":
            values["router_decisions_per_s"] = outcome.decisions_per_s
        echo(f"{name}: {outcome}")
    values |= memory(replicas) | taken_in(replicas, streams)
    notes = (f"{replicas} simulated replicas, {streams:,} streams, {profiles:,} profiles, {visits:,} requests",)
    return Record("routing", f"{replicas}-replicas", values=values, notes=notes)


def memory(replicas: int) -> dict[str, float]:
    """Return the memory of a router that remembers as many keys as it may."""
    tracemalloc.start()
    router = Router(KEYS_PER_REPLICA * replicas)
    owners = [SimulatedReplica(number) for number in range(replicas)]
    before = tracemalloc.get_traced_memory()[0]
    for number in itertools.count():
        router.note(owners[number % replicas], [(number.to_bytes(16, "big"), 1)])
        if number >= router.num_keys:
            break
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {"router_memory_mb": (after - before) / 1e6, "router_keys": float(len(router))}


def taken_in(replicas: int, streams: int) -> dict[str, float]:
    """Return how many events a second a server process reads and hands to its event loop, and what its merged
    statistics cost.
    """
    rates = asyncio.run(_events_per_s(streams, 30))
    stats = [EngineStats("running", by_model=(ModelStats("m"),), models=("m",)) for _ in range(replicas)]
    begun, count = time.process_time(), 200
    for _ in range(count):
        merged(stats)
    return {"events_per_s": rates, "merging_stats_us": (time.process_time() - begun) / count * 1e6}


async def _events_per_s(count: int, steps: int) -> float:
    streams = OpenStreams(lambda stream_id: None)
    opened = [streams.open([GenerationRequest("r", "m", (1,), SUBMITTED)]) for _ in range(count)]
    step = packed(Events([(stream.id, TokensEvent(0, (1,), " word")) for stream in opened]))
    end = packed(Events([(stream.id, FinishedEvent(0, "length", Usage(), Timings())) for stream in opened]))

    def deliver() -> None:
        for data in (*[step] * steps, end):
            message: Message = unpacked(data)
            assert isinstance(message, Events)
            streams.publish(message.deliveries)

    async def read() -> int:
        return sum([len([event async for event in stream]) for stream in opened])

    begun = time.process_time()
    thread = threading.Thread(target=deliver)
    thread.start()
    num_events = await read()
    thread.join()
    return num_events / (time.process_time() - begun)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=at_least_one, default=REPLICAS)
    parser.add_argument("--streams", type=at_least_one, default=STREAMS)
    parser.add_argument("--profiles", type=at_least_one, default=PROFILES)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the figures")
    options = parser.parse_args()
    record(options.replicas, options.streams, options.profiles, 3 * options.streams).save(options.results)
