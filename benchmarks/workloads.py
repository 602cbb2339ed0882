"""The workloads of the table in README.md, as data."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.tokenizer import FIRST_WORD

LENGTHS_SEED = 20261121  # prompt and completion lengths are the same in every round, for every subject


@dataclass(frozen=True, slots=True)
class Job:
    """A greedy request for exactly ``new`` tokens. ``profile`` is the number of a steering profile.

    A job with ``after`` > 0 is sent when every other job has generated that many tokens.
    """

    prompt: tuple[int, ...]
    new: int
    profile: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that are sent at the same time, except for late jobs. ``note`` describes the workload."""

    name: str
    note: str
    jobs: tuple[Job, ...]

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence."""
        return max(len(job.prompt) + job.new for job in self.jobs)


@dataclass(frozen=True, slots=True)
class Scale:
    """Scales prompt and completion lengths by ``share``. Prompts use a vocabulary of ``vocab`` tokens."""

    vocab: int
    share: float = 1.0

    def __call__(self, tokens: int) -> int:
        return max(2, round(tokens * self.share))


# Each round makes a new workload, because repeated prompts would be in the prefix cache.
Maker = Callable[[Scale, int], Workload]


def single(scale: Scale, seed: int) -> Workload:
    jobs = (Job(_prompt(scale, seed, 0, scale(256)), scale(256)),)
    return Workload("W1", "one stream: 256 prompt tokens, 256 new", jobs)


def mixed(scale: Scale, seed: int) -> Workload:
    return Workload("W2", "16 at once: 32 - 1024 prompt tokens, 64 - 256 new", _mixed_jobs(scale, seed))


def steered(num_profiles: int) -> Maker:
    """Return the maker of W2 with ``num_profiles`` distinct profiles used in turn."""

    def make(scale: Scale, seed: int) -> Workload:
        jobs = _mixed_jobs(scale, seed)
        if num_profiles:
            jobs = tuple(Job(job.prompt, job.new, i % num_profiles) for i, job in enumerate(jobs))
        return Workload(f"W3 K={num_profiles}", "W2 with K distinct profiles", jobs)

    return make


def shared_prefix(scale: Scale, seed: int) -> Workload:
    shared = _prompt(scale, seed, 99, scale(1024))
    jobs = tuple(Job(shared + _prompt(scale, seed, i, scale(32)), scale(64)) for i in range(16))
    return Workload("W4", "16 at once: 1024 shared prompt tokens + 32 own, 64 new", jobs)


def unshared_prefix(scale: Scale, seed: int) -> Workload:
    """Return W4 without the shared prefix, to measure the cost without a cached prefix."""
    jobs = tuple(Job(_prompt(scale, seed, i, scale(1024) + scale(32)), scale(64)) for i in range(16))
    return Workload("W4 unshared", "the same lengths, nothing shared", jobs)


def stall(scale: Scale, seed: int) -> Workload:
    early = tuple(Job(_prompt(scale, seed, i, scale(64)), scale(192)) for i in range(8))
    late = Job(_prompt(scale, seed, 8, scale(4096)), scale(16), after=scale(16))
    return Workload("W5", "8 decode when a prompt of 4096 arrives: ITL of the 8", (*early, late))


def streams(count: int, *, length: int = 128, new: int = 64, name: str = "") -> Maker:
    """Return the maker of ``count`` equal streams with ``length`` prompt tokens and ``new`` tokens each."""

    def make(scale: Scale, seed: int) -> Workload:
        jobs = tuple(Job(_prompt(scale, seed, i, scale(length)), scale(new)) for i in range(count))
        return Workload(name or f"streams {count}", f"equal streams: {length} prompt tokens, {new} new", jobs)

    return make


MAKERS: dict[str, Maker] = {
    "W1": single,
    "W2": mixed,
    "W3": steered(16),
    "W4": shared_prefix,
    "W4-unshared": unshared_prefix,
    "W5": stall,
}


def _mixed_jobs(scale: Scale, seed: int) -> tuple[Job, ...]:
    lengths = random.Random(LENGTHS_SEED)  # noqa: S311 - not for secrets
    sizes = [(lengths.randint(32, 1024), lengths.randint(64, 256)) for _ in range(16)]
    return tuple(Job(_prompt(scale, seed, i, scale(p)), scale(n)) for i, (p, n) in enumerate(sizes))


def _prompt(scale: Scale, seed: int, number: int, length: int) -> tuple[int, ...]:
    """Return a prompt of words only, so that every token is visible text."""
    drawn = random.Random(f"{seed}/{number}")  # noqa: S311
    return tuple(drawn.randrange(FIRST_WORD, scale.vocab) for _ in range(length))
