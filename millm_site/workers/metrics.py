"""Metrics of web workers, added to those of the main process. What a worker has counted outlives it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import Counter, Histogram, Metric
from prometheus_client.registry import Collector

from inference.metrics import REGISTRY
from millm_site.http.metrics import PROCESS_COLLECTORS

Key = tuple[str, str, tuple[tuple[str, str], ...]]  # of a series: metric, sample and labels
Increases = Mapping[Key, float]
MAIN = "main"


def summable() -> dict[str, Counter | Histogram]:
    """Return the metrics of the registry whose values in several processes add up, by name."""
    collectors = list(REGISTRY._collector_to_names)
    return {each._name: each for each in collectors if isinstance(each, Counter | Histogram)}


@dataclass(slots=True)
class MetricsSource:
    """The increases of this process's metrics since they were last taken. For one thread at a time."""

    _before: dict[Key, float] = field(default_factory=dict)

    def take(self) -> dict[Key, float]:
        increases: dict[Key, float] = {}
        for name, metric in summable().items():
            for key, value in _series(name, metric):
                increase = value - self._before.get(key, 0.0)
                if increase:
                    increases[key] = increase
                    self._before[key] = value
        return increases


def add_increases(increases: Increases) -> None:
    """Add a worker's increases to the metrics of this process."""
    metrics = summable()
    for (name, sample, labels), increase in increases.items():
        metric = metrics[name]
        names = dict(labels)
        bound = names.pop("le", None)
        child = metric.labels(**names) if names else metric
        if isinstance(child, Counter):
            child.inc(increase)
        elif sample.endswith("_sum"):
            child._sum.inc(increase)
        elif bound is not None:
            child._buckets[child._upper_bounds.index(float(bound))].inc(increase)


def _series(name: str, metric: Counter | Histogram) -> Iterator[tuple[Key, float]]:
    """Yield the series of a metric. The buckets of a histogram are not cumulative here, and its count follows."""
    below: dict[tuple[tuple[str, str], ...], float] = {}
    for family in metric.collect():
        for sample in family.samples:
            labels = tuple(sample.labels.items())
            if sample.name.endswith("_bucket"):
                own = tuple(label for label in labels if label[0] != "le")
                yield (name, sample.name, labels), sample.value - below.get(own, 0.0)
                below[own] = sample.value
            elif not sample.name.endswith("_count"):
                yield (name, sample.name, labels), sample.value


@dataclass(frozen=True, slots=True)
class ProcessFamily:
    """A metric about one process, such as its memory. ``samples`` are names, labels and values."""

    name: str
    text: str
    kind: str
    samples: tuple[tuple[str, Mapping[str, str], float], ...]


def process_families() -> tuple[ProcessFamily, ...]:
    """Return the metrics about this process itself."""
    return tuple(
        ProcessFamily(
            family.name,
            family.documentation,
            family.type,
            tuple((sample.name, dict(sample.labels), sample.value) for sample in family.samples),
        )
        for collector in PROCESS_COLLECTORS
        for family in collector.collect()
    )


class AllProcesses(Collector):
    """A registry for one exposition: the metrics of this process, and those about each process with its name."""

    def __init__(self, about: Mapping[str, Iterable[ProcessFamily]]) -> None:
        self._about = about

    def collect(self) -> Iterator[Metric]:
        ours: set[str] = {name for each in PROCESS_COLLECTORS for name in _names(each)}
        for family in REGISTRY.collect():
            if family.name not in ours:
                yield family
        merged: dict[str, Metric] = {}
        for process, families in self._about.items():
            for one in families:
                metric = merged.setdefault(one.name, Metric(one.name, one.text, one.kind))
                for sample, labels, value in one.samples:
                    metric.add_sample(sample, {"worker": process, **labels}, value)
        yield from merged.values()


def _names(collector: Collector) -> Iterator[str]:
    return (family.name for family in collector.collect())
