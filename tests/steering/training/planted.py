"""Vectors that are sparse sums of known directions."""

from __future__ import annotations

import torch
from torch import Tensor

D_IN, SOURCES, ACTIVE = 24, 40, 3


def directions() -> Tensor:
    """Return unit directions ``[SOURCES, D_IN]``."""
    found = torch.randn(SOURCES, D_IN, generator=torch.Generator().manual_seed(3))
    return found / found.norm(dim=1, keepdim=True)


def vectors(num: int, seed: int) -> Tensor:
    """Return ``[num, D_IN]``, each the sum of ACTIVE directions and a constant."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.zeros(num, SOURCES)
    chosen = torch.rand(num, SOURCES, generator=generator).topk(ACTIVE, dim=1).indices
    weights.scatter_(1, chosen, 6 + 3 * torch.rand(num, ACTIVE, generator=generator))
    return weights @ directions() + 0.5
