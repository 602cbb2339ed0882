"""/metrics: the metrics of this process in Prometheus's text formats. A web worker sends those of all processes.

The engine's numbers are read when the metrics are scraped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import get_args

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from prometheus_client import GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from core.runtime import Service, runtime
from inference.client import (
    Distribution,
    EngineDownError,
    EngineState,
    EngineStats,
    ModelStats,
    ReplicaStats,
    get_client,
)
from inference.metrics import REGISTRY
from jobs.metrics import METRICS as JOB_METRICS
from millm_site.http.failures import read_only
from openai_api.http.client_address import is_loopback
from openai_api.request_log import metrics as request_metrics

__all__ = ["metrics", "request_metrics"]  # importing request_metrics registers its counters

# name, help, value
_GAUGES: tuple[tuple[str, str, Callable[[ModelStats], float]], ...] = (
    ("millm_num_requests_running", "Running sequences.", lambda m: m.running),
    ("millm_num_requests_waiting", "Waiting sequences.", lambda m: m.waiting),
    ("millm_kv_cache_usage_ratio", "Share of the KV cache in use, 0 to 1.", lambda m: m.kv_used_ratio),
    ("millm_kv_cache_bytes", "Memory limit of the KV cache.", lambda m: m.limits.kv_bytes * m.replicas),
    ("millm_kv_cache_tokens", "Tokens that fit in the KV cache.", lambda m: m.limits.kv_tokens * m.replicas),
    ("millm_steering_rows", "Rows in use in the steering tables.", lambda m: m.steering_rows),
)
_COUNTERS: tuple[tuple[str, str, Callable[[ModelStats], float]], ...] = (
    ("millm_prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", lambda m: m.prefix_queries),
    ("millm_prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda m: m.prefix_hits),
    ("millm_num_preemptions", "Sequences preempted because the KV cache was full.", lambda m: m.preemptions),
    ("millm_spec_decode_num_drafts", "Speculative drafts that were verified.", lambda m: m.drafts),
    ("millm_spec_decode_num_draft_tokens", "Draft tokens.", lambda m: m.draft_tokens),
    (
        "millm_spec_decode_num_accepted_tokens",
        "Draft tokens that were accepted.",
        lambda m: m.accepted_draft_tokens,
    ),
)
_REPLICAS: tuple[tuple[str, str, Callable[[ReplicaStats], float]], ...] = (
    ("millm_replica_up", "1 if the engine process accepts requests.", lambda r: r.state in {"idle", "running"}),
    ("millm_replica_running", "Running sequences of an engine process.", lambda r: r.running),
    ("millm_replica_waiting", "Waiting sequences of an engine process.", lambda r: r.waiting),
    ("millm_replica_models", "Models that an engine process has.", lambda r: len(r.models)),
)
_DISTRIBUTIONS: tuple[tuple[str, str, Callable[[ModelStats], Distribution]], ...] = (
    ("millm_engine_step_seconds", "Duration of engine steps.", lambda m: m.step_seconds),
    ("millm_engine_step_sequences", "Sequences per engine step (batch size).", lambda m: m.step_sequences),
    ("millm_iteration_tokens", "Tokens computed per engine step.", lambda m: m.step_tokens),
)


class EngineCollector(Collector):
    """Collects the engine's numbers. If ``stats`` raises EngineDownError, the engine counts as stopped."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        return ()  # the names are checked when the metrics are collected

    def collect(self) -> Iterator[Metric]:
        try:
            stats = self._stats()
        except EngineDownError:
            stats = EngineStats("stopped")
        yield from _engine_metrics(stats)
        yield from _replica_metrics(stats.replicas)
        yield from _model_metrics(stats.by_model)


def _engine_metrics(stats: EngineStats) -> Iterator[Metric]:
    state = GaugeMetricFamily("millm_engine_state", "1 for the engine's current state.", labels=("state",))
    for name in get_args(EngineState):
        state.add_metric((name,), float(stats.state == name))
    yield state
    yield GaugeMetricFamily("millm_engine_up", "1 if the engine accepts requests.", value=float(stats.is_up))
    yield CounterMetricFamily(
        "millm_engine_restarts", "Engine threads or processes that crashed and were replaced.", value=stats.restarts
    )


def _replica_metrics(replicas: Iterable[ReplicaStats]) -> Iterator[Metric]:
    for name, text, value in _REPLICAS:
        gauge = GaugeMetricFamily(name, text, labels=("replica",))
        for replica in replicas:
            gauge.add_metric((str(replica.number),), float(value(replica)))
        yield gauge


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
        "millm_engine_step_faults", "Attempts at an engine step that failed.", labels=("model", "code")
    )
    for model in models:
        for code, count in model.step_faults.items():
            faults.add_metric((model.name, code), count)
    return faults


def _cumulated(distribution: Distribution) -> tuple[list[tuple[str, float]], float]:
    """Return cumulative buckets, as Prometheus defines them, and the sum."""
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, distribution.bounds), "+Inf"), distribution.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets, distribution.total


REGISTRY.register(EngineCollector(lambda: get_client().stats()))
for job_metric in JOB_METRICS:
    REGISTRY.register(job_metric)
PROCESS_COLLECTORS: tuple[Collector, ...] = (
    ProcessCollector(registry=REGISTRY),
    PlatformCollector(registry=REGISTRY),
    GCCollector(registry=REGISTRY),
)


@read_only
@never_cache
async def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics.

    With MILLM_METRICS_TOKEN, the request must send that token. Without, the client must be on this machine and allowed
    to use /v1 without a key.
    """
    if not may_read(request):
        return _refusal()
    content, content_type = await runtime.get(EXPOSITION)(request.headers.get("Accept", ""))
    return HttpResponse(content, content_type=content_type)


async def own_exposition(accept: str) -> tuple[bytes, str]:
    """Return the metrics of this process in a format that the client accepts, and its content type."""
    encode, content_type = choose_encoder(accept)
    return await asyncio.to_thread(encode, REGISTRY), content_type


EXPOSITION: Service[Callable[[str], Awaitable[tuple[bytes, str]]]] = Service(lambda: own_exposition)


def may_read(request: HttpRequest) -> bool:
    token = settings.MILLM_METRICS_TOKEN
    if not token:
        return settings.MILLM_AUTH == "loopback" and is_loopback(request)
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return constant_time_compare(given.strip(), token) and scheme.lower() == "bearer"


def _refusal() -> HttpResponse:
    if settings.MILLM_METRICS_TOKEN:
        return HttpResponse(
            "Send MILLM_METRICS_TOKEN as `Authorization: Bearer <token>`.\n",
            status=401,
            content_type="text/plain; charset=utf-8",
            headers={"WWW-Authenticate": "Bearer"},
        )
    text = "Metrics require a token. Set MILLM_METRICS_TOKEN and send it as `Authorization: Bearer <token>`.\n"
    return HttpResponse(text, status=403, content_type="text/plain; charset=utf-8")
