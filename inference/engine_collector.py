"""The engine's own numbers as Prometheus metrics: read when somebody asks, nothing is counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import get_args

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from inference.engine.errors import EngineDownError
from inference.engine.stats import EngineState, EngineStats, ModelStats
from inference.engine.step_counters import Distribution

# name, help, value
_GAUGES: tuple[tuple[str, str, Callable[[ModelStats], float]], ...] = (
    ("millm_num_requests_running", "Sequences that run.", lambda m: m.running),
    ("millm_num_requests_waiting", "Sequences that wait for a place in the batch.", lambda m: m.waiting),
    ("millm_kv_cache_usage_ratio", "Share of the key-value cache in use, 0 to 1.", lambda m: m.kv_used_ratio),
    ("millm_kv_cache_bytes", "Memory that a model may take for keys and values.", lambda m: m.limits.kv_bytes),
    ("millm_kv_cache_tokens", "Tokens whose keys and values fit in it.", lambda m: m.limits.kv_tokens),
    ("millm_steering_rows", "Rows in use in the steering tables.", lambda m: m.steering_rows),
)
_COUNTERS: tuple[tuple[str, str, Callable[[ModelStats], float]], ...] = (
    ("millm_prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", lambda m: m.prefix_queries),
    ("millm_prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda m: m.prefix_hits),
    ("millm_num_preemptions", "Sequences set back because the cache was full.", lambda m: m.preemptions),
    ("millm_spec_decode_num_drafts", "Drafts of further tokens that steps checked.", lambda m: m.drafts),
    ("millm_spec_decode_num_draft_tokens", "Tokens of these drafts.", lambda m: m.draft_tokens),
    (
        "millm_spec_decode_num_accepted_tokens",
        "Tokens of these drafts that proved right.",
        lambda m: m.accepted_draft_tokens,
    ),
)
_DISTRIBUTIONS: tuple[tuple[str, str, Callable[[ModelStats], Distribution]], ...] = (
    ("millm_engine_step_seconds", "Time of an engine step.", lambda m: m.step_seconds),
    ("millm_engine_step_sequences", "Sequences in an engine step: the batch size.", lambda m: m.step_sequences),
    ("millm_iteration_tokens", "Tokens that an engine step computes.", lambda m: m.step_tokens),
)


class EngineCollector(Collector):
    """``stats`` may raise EngineDownError: a process without an engine has a stopped one."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        return ()  # names are checked when they are collected

    def collect(self) -> Iterator[Metric]:
        try:
            stats = self._stats()
        except EngineDownError:
            stats = EngineStats("stopped")
        yield from _engine_metrics(stats)
        yield from _model_metrics(stats.by_model)


def _engine_metrics(stats: EngineStats) -> Iterator[Metric]:
    state = GaugeMetricFamily("millm_engine_state", "1 for the state that the engine is in.", labels=("state",))
    for name in get_args(EngineState):
        state.add_metric((name,), float(stats.state == name))
    yield state
    yield GaugeMetricFamily("millm_engine_up", "1 when the engine accepts requests.", value=float(stats.is_up))
    yield CounterMetricFamily(
        "millm_engine_restarts", "Engine threads that died and were replaced.", value=stats.restarts
    )


def _model_metrics(models: Iterable[ModelStats]) -> Iterator[Metric]:
    for name, text, value in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=("model",))
        for model in models:
            gauge.add_metric((model.name,), value(model))
        yield gauge
    for name, text, value in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=("model",))
        for model in models:
            counter.add_metric((model.name,), value(model))
        yield counter
    for name, text, distribution in _DISTRIBUTIONS:
        histogram = HistogramMetricFamily(name, text, labels=("model",))
        for model in models:
            histogram.add_metric((model.name,), *_cumulated(distribution(model)))
        yield histogram
    yield _step_faults(models)


def _step_faults(models: Iterable[ModelStats]) -> Metric:
    faults = CounterMetricFamily(
        "millm_engine_step_faults", "Attempts at an engine step that raised.", labels=("model", "code")
    )
    for model in models:
        for code, count in model.step_faults.items():
            faults.add_metric((model.name, code), count)
    return faults


def _cumulated(distribution: Distribution) -> tuple[list[tuple[str, float]], float]:
    """Buckets as Prometheus has them, each with all below it, and the sum."""
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, distribution.bounds), "+Inf"), distribution.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets, distribution.total
