"""Choose a replica for requests: one that has computed the beginning of their prompts before, unless it is too busy.

The keys of the prompts' blocks are those of the engine's prefix cache
(:mod:`inference.engine.cache.prefix_keys`), so they cover the salt of the requests and the steering of their prompts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Protocol, TypeVar

from inference.engine.cache.prefix_keys import PREFIX_BLOCK, PrefixKeys, Programs
from inference.engine.messages import GenerationRequest, Request
from inference.steering_refs import SteeringRef

# Numbers of blocks: a prompt is remembered at these lengths only, so that a long one takes no more memory.
MILESTONES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
STEERING_BLOCKS = 2  # compiled steering is worth as much as so many blocks
MAX_OWNERS = 4  # replicas that are remembered for a key, the latest first
KEYS_PER_REPLICA = 8_192
OVERLOAD = 1.25  # a preferred replica may have so many times its share of all sequences,
SPARE = 1  # and one more
KV_FULL = 0.95


class Candidate(Protocol):
    """A replica that could run the requests."""

    @property
    def incarnation(self) -> Hashable:
        """Identifies the process: another one has computed nothing yet."""

    @property
    def num_sequences(self) -> int: ...

    def capacity(self, model: str) -> int:
        """Return how many sequences of the model run at once."""

    def kv_used_ratio(self, model: str) -> float: ...


C = TypeVar("C", bound=Candidate)
Keys = Sequence[tuple[str | bytes, int]]


class Router:
    """Remembers which replicas have computed which prompts, the latest ``num_keys`` of them. Thread-safe."""

    def __init__(self, num_keys: int = 4 * KEYS_PER_REPLICA) -> None:
        self.num_keys = num_keys
        self._lock = threading.Lock()
        self._owners: OrderedDict[str | bytes, tuple[Hashable, ...]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of keys that are remembered."""
        return len(self._owners)

    def order(self, candidates: Sequence[C], requests: Sequence[Request], keys: Keys) -> list[C]:
        """Return the candidates in the order in which to ask them to run all of the requests.

        The first one has computed most of the prompt with these ``keys`` among those with at most OVERLOAD times their
        share of all sequences, and a KV cache that is not full. The rest follows by load.
        """
        if len(candidates) < 2:
            return list(candidates)
        model = requests[0].model
        capacities = [max(1, each.capacity(model)) for each in candidates]
        nums = [each.num_sequences for each in candidates]
        share = OVERLOAD * (sum(nums) + len(requests)) / sum(capacities)
        known = self._known(keys)
        ranked = []
        for place, each in enumerate(candidates):
            is_full = each.kv_used_ratio(model) > KV_FULL
            is_busy = nums[place] + len(requests) > share * capacities[place] + SPARE
            blocks = 0 if is_full or is_busy else known.get(each.incarnation, 0)
            ranked.append((-blocks, is_full, (nums[place] + 1) / capacities[place], place))
        ranked.sort()
        return [candidates[place] for *_, place in ranked]

    def note(self, chosen: Candidate, keys: Keys) -> None:
        """Remember that a replica computes the prompt with these keys."""
        owner = chosen.incarnation
        with self._lock:
            for key, _ in keys:
                owners = self._owners.pop(key, ())
                if owners[:1] != (owner,):
                    owners = (owner, *[each for each in owners if each != owner][: MAX_OWNERS - 1])
                self._owners[key] = owners
            while len(self._owners) > self.num_keys:
                self._owners.popitem(last=False)

    def _known(self, keys: Keys) -> dict[Hashable, int]:
        """Return how many blocks each process has computed, with those that compiled steering is worth."""
        prompt: dict[Hashable, int] = {}
        steering: dict[Hashable, int] = {}
        with self._lock:
            for key, blocks in keys:
                found = steering if isinstance(key, str) else prompt
                for owner in self._owners.get(key, ()):
                    found[owner] = blocks  # keys of prompts come in order of their lengths
        return {owner: prompt.get(owner, 0) + steering.get(owner, 0) for owner in {*prompt, *steering}}


def routing_keys(request: Request) -> Keys:
    """Return the keys under which a request is remembered, with the number of blocks that each is worth."""
    if not isinstance(request, GenerationRequest):
        return []
    steering = request.steering
    found: list[tuple[str | bytes, int]] = []
    if steering is not None:
        found.append(steering_key(steering))
    num_blocks = (len(request.prompt_token_ids) - 1) // PREFIX_BLOCK  # the last token is always computed
    programs = Programs(prompt="" if steering is None else steering.prompt_program)
    keys = PrefixKeys(PREFIX_BLOCK, programs, len(request.prompt_token_ids), request.cache_salt)
    chain = keys.upto(request.prompt_token_ids, min(num_blocks, MILESTONES[-1]))
    for count in MILESTONES:
        if count <= len(chain) and (key := chain[count - 1]) is not None:
            found.append((key, count))
    return found


def steering_key(steering: SteeringRef) -> tuple[str, int]:
    """Return the key under which the replicas that have compiled the steering are remembered."""
    return steering.fingerprint, STEERING_BLOCKS
