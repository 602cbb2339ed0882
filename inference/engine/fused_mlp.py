"""A gated MLP's middle as one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from inference.engine.fusion_probe import PROBE_ROWS, Forward, agree, random_input

ACTIVATIONS = ("silu", "gelu_tanh")


@dataclass(frozen=True, slots=True)
class FusedMlp:
    """``down(activation(gate(x)) * up(x))``; ``activation`` is a name that the kernel knows."""

    module: Any
    activation: str

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.module.gate_proj(x), self.module.up_proj(x)
        mixed = torch.ops.millm_native.gate_mul.default(gate.flatten(0, -2), up.flatten(0, -2), self.activation)
        out: Tensor = self.module.down_proj(mixed.view(*gate.shape[:-1], -1))
        return out


def mlp_forward(child: Any, dtype: torch.dtype) -> Forward | None:
    parts = [getattr(child, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(isinstance(p, nn.Module) and hasattr(p, "in_features") for p in parts):
        return None
    x = random_input(1, PROBE_ROWS, child.gate_proj.in_features, dtype=dtype)
    candidates = (FusedMlp(child, activation) for activation in ACTIVATIONS)
    return next((mlp for mlp in candidates if agree(partial(child.forward, x), partial(mlp, x))), None)
