"""Totals of the process's metrics, and the load between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client import Counter, Histogram

from console.load.load import NO_GAPS, NO_WAITS, Load
from inference.client import EngineError, EngineStats, get_client
from inference.metrics import GENERATION_TOKENS, INTER_TOKEN_LATENCY, PROMPT_TOKENS, TIME_TO_FIRST_TOKEN
from openai_api.request_log.metrics import ERRORS, REQUESTS, Use


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals since the process started. ``first_tokens`` and ``gaps`` are as in Load."""

    requests: int
    errors: Mapping[str, int]
    prompt_tokens: int
    generation_tokens: int
    first_tokens: tuple[int, ...]
    gaps: tuple[int, ...]
    steps: int
    sequences: int
    running: int
    waiting: int
    kv: float

    @property
    def streamed(self) -> int:
        """Return the number of generated tokens, including those of running sequences."""
        return sum(self.first_tokens) + sum(self.gaps)


def read_totals() -> Totals:
    try:
        stats = get_client().stats()
    except EngineError:
        stats = EngineStats("stopped")
    models = stats.by_model
    return Totals(
        requests=round(_sum(REQUESTS)),
        errors=_by_label(ERRORS, "code"),
        prompt_tokens=round(_sum(PROMPT_TOKENS)),
        generation_tokens=round(_sum(GENERATION_TOKENS)),
        first_tokens=_buckets(TIME_TO_FIRST_TOKEN) or NO_WAITS,
        gaps=_buckets(INTER_TOKEN_LATENCY) or NO_GAPS,
        steps=sum(model.step_sequences.count for model in models),
        sequences=round(sum(model.step_sequences.total for model in models)),
        running=stats.running,
        waiting=stats.waiting,
        kv=max((model.kv_used_ratio for model in models), default=0.0),
    )


def load_between(before: Totals, after: Totals, use: Use) -> Load:
    """Return the difference of two totals. Never negative, although unloading a model resets its counters."""
    return Load(
        requests=after.requests - before.requests,
        errors={code: n for code, total in after.errors.items() if (n := total - before.errors.get(code, 0)) > 0},
        prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        generation_tokens=after.generation_tokens - before.generation_tokens,
        first_tokens=_less(after.first_tokens, before.first_tokens),
        gaps=_less(after.gaps, before.gaps),
        steps=max(0, after.steps - before.steps),
        sequences=max(0, after.sequences - before.sequences),
        running=max(before.running, after.running),
        waiting=max(before.waiting, after.waiting),
        kv=max(before.kv, after.kv),
        profiles=use.profiles,
        keys=use.keys,
    )


def _sum(counter: Counter) -> float:
    return sum(value for _, value in _samples(counter, "_total"))


def _by_label(counter: Counter, label: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for labels, value in _samples(counter, "_total"):
        found[labels[label]] = found.get(labels[label], 0) + round(value)
    return found


def _buckets(histogram: Histogram) -> tuple[int, ...]:
    """Return the counts of each bucket, summed over all models. The last one counts values above all bounds."""
    cumulated: dict[float, float] = {}
    for labels, value in _samples(histogram, "_bucket"):
        bound = float(labels["le"])
        cumulated[bound] = cumulated.get(bound, 0.0) + value
    ordered = [0.0, *(cumulated[bound] for bound in sorted(cumulated))]
    return tuple(round(above - below) for below, above in pairwise(ordered))


def _samples(metric: Counter | Histogram, suffix: str) -> Iterable[tuple[Mapping[str, str], float]]:
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith(suffix):
                yield sample.labels, sample.value


def _less(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(after, before, strict=True))
