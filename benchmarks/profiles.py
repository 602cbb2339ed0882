"""Random SAEs and K distinct profiles, as interventions for the engine and as files for a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inference.engine.models.loader import LoadedModel
from inference.interventions import (
    FeatureColumns,
    FeatureRule,
    Intervention,
    NormEdit,
    ReaderEdit,
    Site,
    VectorEdit,
    Window,
)

D_SAE = 16384
RULES = 3  # number of features that a clamping profile edits


@dataclass
class RandomSAE:
    """A ReLU SAE with random weights."""

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

    def columns(self, features: Tensor) -> FeatureColumns:
        read = self.w_enc[:, features].t()
        return FeatureColumns(self.w_dec[features], read, threshold=torch.zeros(len(features)))


def additive_profiles(loaded: LoadedModel, count: int) -> list[Intervention]:
    """Return ``count`` profiles that each add a different vector."""
    return [_add(loaded, seed) for seed in range(count)]


def clamping_profiles(loaded: LoadedModel, count: int) -> list[Intervention]:
    """Return ``count`` profiles that each clamp RULES different features of the same SAE."""
    weights = torch.randn(loaded.hidden_size, D_SAE, generator=torch.Generator().manual_seed(0))
    weights = weights.to(loaded.device)
    reader = RandomSAE("sae", weights * 0.02, weights.t().contiguous())
    return [_clamp(loaded, reader, seed) for seed in range(count)]


def mixed_profiles(loaded: LoadedModel, count: int) -> list[Intervention]:
    """Return profiles that alternately add, clamp, and do both at two layers within a window."""
    added, clamped = additive_profiles(loaded, count), clamping_profiles(loaded, count)
    return [
        (one, other, _both(loaded, one, other))[i % 3]
        for i, (one, other) in enumerate(zip(added, clamped, strict=True))
    ]


KINDS: dict[str, Callable[[LoadedModel, int], list[Intervention]]] = {
    "add": additive_profiles,
    "clamp": clamping_profiles,
    "mixed": mixed_profiles,
}


def _add(loaded: LoadedModel, seed: int) -> Intervention:
    vector = torch.randn(loaded.hidden_size, generator=torch.Generator().manual_seed(seed)) * 0.1
    return Intervention(f"add-{seed}", (VectorEdit(_site(loaded), vector),))


def _both(loaded: LoadedModel, one: Intervention, other: Intervention) -> Intervention:
    (added,) = one.edits
    late = replace(added, site=Site(loaded.num_layers - 1), phase="generation", window=Window(after=4))
    return Intervention(f"{one.fingerprint}-{other.fingerprint}", (late, *other.edits, NormEdit(_site(loaded))))


def _clamp(loaded: LoadedModel, reader: RandomSAE, seed: int) -> Intervention:
    rules = tuple(FeatureRule(seed * RULES + i, gain=0.0, offset=0.5) for i in range(RULES))
    return Intervention(f"clamp-{seed}", (ReaderEdit(_site(loaded), reader, rules),))


def _site(loaded: LoadedModel) -> Site:
    return Site(loaded.num_layers // 2)
