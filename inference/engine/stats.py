"""Statistics of the engine and its models, for the admin, /health and metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STEP_SEQUENCES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)
EngineState = Literal["starting", "idle", "running", "draining", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution of values: ``counts[i]`` of them are at most ``bounds[i]`` and above the previous bound. The last
    count is of values above all bounds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def __add__(self, other: Distribution) -> Distribution:
        """Return the distribution of the values of both. They have the same bounds, or one has no values."""
        if not self.count or not other.count:
            return self if self.count else other
        counts = tuple(ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True))
        return Distribution(self.bounds, counts, self.total + other.total)


class BucketCounts:
    """Counts values by size. One thread writes; any thread may call :meth:`read`."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> Distribution:
        return Distribution(self._bounds, tuple(self._counts), self._total)


@dataclass(slots=True)
class StepCounters:
    """One model's steps since it was attached. ``faults`` counts attempts that raised, by code."""

    seconds: BucketCounts = field(default_factory=lambda: BucketCounts(STEP_SECONDS))
    sequences: BucketCounts = field(default_factory=lambda: BucketCounts(STEP_SEQUENCES))
    tokens: BucketCounts = field(default_factory=lambda: BucketCounts(STEP_TOKENS))
    faults: Counter[str] = field(default_factory=Counter)


NOTHING = Distribution((), (0,), 0.0)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits and choices for a model, derived from the machine, the settings and the model itself.

    ``num_threads`` compute on a CPU. A sequence has at most ``max_seq_len`` tokens, and ``max_batch_size`` sequences
    run at once. The cache of ``kv_bytes`` holds ``kv_tokens`` tokens of all sequences together; embedding models have
    none. ``max_prefill_tokens`` of prompts are computed in one step, at least ``min_prefill_tokens`` while others
    decode.
    """

    device: str = ""
    dtype: str = ""
    num_threads: int = 0
    max_seq_len: int = 0
    max_batch_size: int = 0
    kv_cache_backend: str = "none"
    kv_bytes: int = 0
    kv_tokens: int = 0
    max_prefill_tokens: int = 0
    min_prefill_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelStats:
    """One attached model: its current state, and counts since it was attached.

    ``kv_used_ratio`` is 0 to 1; ``kv_unwritten_bytes`` of the cache's memory are not allocated on the device yet;
    ``prefix_queries`` and ``prefix_hits`` count prompt tokens looked up and found in the prefix cache; ``drafts`` were
    verified, with ``draft_tokens`` tokens, of which ``accepted_draft_tokens`` were accepted; ``steering_rows`` are the
    rows of the steering tables in use; ``step_faults`` are attempts at a step that raised, by code. Distributions are
    of seconds, sequences and tokens of a step. ``kernels`` names the kernels in use. With several engine processes,
    ``replicas`` of them have the model: the limits are those of one, the ratio is their mean, and all counts are sums.
    """

    name: str
    limits: ModelLimits = ModelLimits()
    running: int = 0
    waiting: int = 0
    kv_used_ratio: float = 0.0
    kv_unwritten_bytes: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    steering_rows: int = 0
    step_seconds: Distribution = NOTHING
    step_sequences: Distribution = NOTHING
    step_tokens: Distribution = NOTHING
    step_faults: Mapping[str, int] = field(default_factory=dict)
    kernels: str = ""
    replicas: int = 1

    def __add__(self, other: ModelStats) -> ModelStats:
        """Return the statistics of a model of several engines."""
        replicas = self.replicas + other.replicas
        ratio = (self.kv_used_ratio * self.replicas + other.kv_used_ratio * other.replicas) / replicas
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        faults = Counter(self.step_faults) + Counter(other.step_faults)
        return replace(self, **sums, replicas=replicas, kv_used_ratio=ratio, step_faults=dict(faults))


_SUMS = (
    "running",
    "waiting",
    "kv_unwritten_bytes",
    "prefix_queries",
    "prefix_hits",
    "preemptions",
    "drafts",
    "draft_tokens",
    "accepted_draft_tokens",
    "steering_rows",
    "step_seconds",
    "step_sequences",
    "step_tokens",
)


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """One of several engine processes. ``number`` identifies it while the server runs; ``place``: where it runs."""

    number: int
    state: EngineState
    place: str = ""
    running: int = 0
    waiting: int = 0
    models: tuple[str, ...] = ()
    restarts: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Statistics of the engine. ``restarts`` counts how often the engine thread was replaced after a crash.

    ``background_running`` and ``background_waiting`` are the sequences among ``running`` and ``waiting`` that have the
    lowest priority. ``replicas`` is empty if there is only one engine.
    """

    state: EngineState
    running: int = 0
    waiting: int = 0
    background_running: int = 0
    background_waiting: int = 0
    free_slots: int = 0
    steps: int = 0
    models: tuple[str, ...] = ()
    error: str = ""
    restarts: int = 0
    by_model: tuple[ModelStats, ...] = ()
    replicas: tuple[ReplicaStats, ...] = ()

    @property
    def is_up(self) -> bool:
        return self.state in {"idle", "running"}

    def kv_unwritten(self, model: str) -> int:
        """Return the bytes of KV cache that a model has not allocated yet; 0 if it is not attached."""
        return sum(each.kv_unwritten_bytes for each in self.by_model if each.name == model)


_BY_READINESS: tuple[EngineState, ...] = ("running", "idle", "starting", "draining", "failed", "stopped")


def merged(engines: Sequence[EngineStats]) -> EngineStats:
    """Return the statistics of several engines as those of one: it accepts requests as long as one of them does.

    The error is that of the first engine that accepts none.
    """
    if len(engines) == 1:
        return engines[0]
    by_model: dict[str, ModelStats] = {}
    for model in (model for engine in engines for model in engine.by_model):
        by_model[model.name] = by_model[model.name] + model if model.name in by_model else model
    return EngineStats(
        state=min((engine.state for engine in engines), key=_BY_READINESS.index),
        running=sum(engine.running for engine in engines),
        waiting=sum(engine.waiting for engine in engines),
        background_running=sum(engine.background_running for engine in engines),
        background_waiting=sum(engine.background_waiting for engine in engines),
        free_slots=sum(engine.free_slots for engine in engines),
        steps=sum(engine.steps for engine in engines),
        models=tuple(dict.fromkeys(name for engine in engines for name in engine.models)),
        error=next((engine.error for engine in engines if engine.error), ""),
        restarts=sum(engine.restarts for engine in engines),
        by_model=tuple(by_model.values()),
    )
