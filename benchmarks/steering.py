"""The cost of steering: 16 streams with K distinct profiles among them, against none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.workload import medians, request, run
from inference.engine.loader import LoadedModel
from inference.interventions import FeatureRule, Intervention, ReaderEdit, Site, VectorEdit

STREAMS, PROMPT, NEW, D_SAE = 16, 16, 48, 16384


@dataclass
class RandomReader:
    """A relu SAE of random weights."""

    key: str
    w_enc: Tensor
    w_dec: Tensor

    @property
    def d_in(self) -> int:
        return self.w_enc.shape[0]

    @property
    def d_sae(self) -> int:
        return self.w_enc.shape[1]

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        return torch.relu(h @ self.w_enc[:, features])

    def delta(self, change: Tensor, features: Tensor, h: Tensor) -> Tensor:
        return change @ self.w_dec[features]


def table(loaded: LoadedModel, distinct: tuple[int, ...], rounds: int) -> list[str]:
    """Markdown rows: K, tok/s and ratio to K = 0, for profiles that add and that clamp."""
    reader = RandomReader("sae", torch.randn(loaded.hidden_size, D_SAE) * 0.02, torch.randn(D_SAE, loaded.hidden_size))
    runs: dict[str, Callable[[], float]] = {}
    for k in distinct:
        runs[f"add {k}"] = partial(_tokens_per_s, loaded, [_add(loaded, i) for i in range(k)])
        runs[f"clamp {k}"] = partial(_tokens_per_s, loaded, [_clamp(loaded, reader, i) for i in range(k)])
    found = medians(runs, rounds)
    rows = ["| distinct profiles | add tok/s | ratio | clamp tok/s | ratio |", "|---|---|---|---|---|"]
    for k in distinct:
        add, clamp = found[f"add {k}"], found[f"clamp {k}"]
        rows.append(f"| {k} | {add:.0f} | {add / found['add 0']:.3f} | {clamp:.0f} | {clamp / found['clamp 0']:.3f} |")
    return rows


def _tokens_per_s(loaded: LoadedModel, profiles: list[Intervention]) -> float:
    chosen = [profiles[i % len(profiles)] if profiles else None for i in range(STREAMS)]
    requests = [
        request(loaded.name, i, prompt=PROMPT, new=NEW, intervention=profile) for i, profile in enumerate(chosen)
    ]
    return run(loaded, requests).tokens_per_s


def _site(loaded: LoadedModel) -> Site:
    return Site(loaded.num_layers // 2)


def _add(loaded: LoadedModel, seed: int) -> Intervention:
    vector = torch.randn(loaded.hidden_size, generator=torch.Generator().manual_seed(seed)) * 0.1
    return Intervention(f"add-{seed}", (VectorEdit(_site(loaded), vector),))


def _clamp(loaded: LoadedModel, reader: RandomReader, seed: int) -> Intervention:
    rules = tuple(FeatureRule(seed * 3 + i, gain=0.0, offset=0.5) for i in range(3))
    return Intervention(f"clamp-{seed}", (ReaderEdit(_site(loaded), reader, rules),))
