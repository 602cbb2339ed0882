"""The shape of a model's keys and values per layer, determined by a forward pass of one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """One attention layer. ``window``: the number of last tokens that it attends to; 0 for all."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    window: int = 0

    @property
    def bytes_per_token(self) -> int:
        return self.num_kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep the same tokens: all tokens (``window`` 0), or the last ``window``."""

    window: int
    layers: tuple[int, ...]
    bytes_per_token: int


def group_layers(layouts: Sequence[LayerLayout]) -> tuple[LayerGroup, ...]:
    """Group layers by window; full attention first."""
    groups = []
    for window in sorted({layout.window for layout in layouts}):
        layers = tuple(i for i, layout in enumerate(layouts) if layout.window == window)
        groups.append(LayerGroup(window, layers, sum(layouts[i].bytes_per_token for i in layers)))
    return tuple(groups)


def num_heads(module: nn.Module) -> int:
    """Return the number of query heads; 0 if the configuration has no single number."""
    found = getattr(module.config.get_text_config(), "num_attention_heads", 0)  # type: ignore[union-attr, operator]
    return found if isinstance(found, int) else 0
