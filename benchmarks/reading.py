"""The cost of capturing activations and of watch rules: ``python -m benchmarks.reading``.

One engine with 16 streams; the subjects differ in what their requests capture. Rules that never match represent watch
rules, because matches are rare.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.engine import EngineSubject, load_shape, running
from benchmarks.figures import Trace
from benchmarks.options import Options, parse_options
from benchmarks.profiles import D_SAE, RandomSAE
from benchmarks.record import Record
from benchmarks.subject import Plan, measure
from benchmarks.workloads import Workload, streams
from inference.captures import CaptureSpec, FeatureValues, TopFeatures
from inference.engine.config import EngineConfig
from inference.engine.models.loader import LoadedModel
from inference.interventions import Site

STREAMS = 16
RULES = 8


@dataclass
class RandomEncoder(RandomSAE):
    """A ReLU SAE, or with ``k`` a TopK SAE, where each activation depends on all others."""

    k: int = 0

    def encode(self, h: Tensor) -> Tensor:
        a = torch.relu(h @ self.w_enc)
        if not self.k:
            return a
        best = a.topk(self.k, dim=-1)
        return torch.zeros_like(a).scatter_(-1, best.indices, best.values)

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        return self.encode(h)[:, features] if self.k else super().activations(h, features)


class CapturingSubject:
    """An engine subject whose requests capture activations."""

    def __init__(self, engine: EngineSubject, name: str, captures: tuple[CaptureSpec, ...]) -> None:
        self.name = name
        self._engine = copy(engine)
        self._engine.captures = captures

    def run(self, workload: Workload) -> list[Trace]:
        return self._engine.run(workload)

    def peak_memory_mb(self) -> float | None:
        return self._engine.peak_memory_mb()


def captures_of(loaded: LoadedModel) -> Mapping[str, tuple[CaptureSpec, ...]]:
    """Return the captures of each subject by name. The first and the last one show how reliable the ratios are."""
    site, features = Site(loaded.num_layers // 2), tuple(range(RULES))
    weights = torch.randn(loaded.hidden_size, D_SAE, generator=torch.Generator().manual_seed(0)) * 0.02
    weights = weights.to(loaded.device)
    relu = RandomEncoder("relu", weights, weights.t().contiguous())
    topk = RandomEncoder("topk", weights, weights.t().contiguous(), k=32)
    silent = (1e9,) * RULES

    def watch(reader: RandomEncoder) -> tuple[CaptureSpec, ...]:
        return (CaptureSpec(site=site, probe=FeatureValues(reader, features, silent), passes_over_cached=True),)

    return {
        "nothing": (),
        f"{RULES} rules, relu": watch(relu),
        f"{RULES} rules, topk": watch(topk),
        "top 10 of answers": (CaptureSpec(site=site, probe=TopFeatures(topk, 10), phase="generation"),),
        "top 10 of all": (CaptureSpec(site=site, probe=TopFeatures(topk, 10)),),
        "residual of all": (CaptureSpec(site=site),),
        "nothing again": (),
    }


def record(options: Options) -> Record:
    loaded = load_shape(options.shape, options)
    config = EngineConfig(max_batch_size=STREAMS)
    with running(loaded, config) as engine:
        subjects = [CapturingSubject(engine, name, captures) for name, captures in captures_of(loaded).items()]
        rows = measure(subjects, [streams(STREAMS)], Plan(options.scale, options.rounds))
    return Record("reading", options.label, tuple(rows), notes=(f"{STREAMS} streams, {D_SAE} features",))


if __name__ == "__main__":
    found = parse_options(__doc__)
    record(found).save(found.results)
