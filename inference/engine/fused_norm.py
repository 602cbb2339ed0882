"""RMS norms as one kernel: ours on the CPU, torch's on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from inference.engine.fusion_probe import PROBE_ROWS, TOLERANCES, Forward, agree, random_input


@dataclass(frozen=True, slots=True)
class FusedNorm:
    """Weight and constants of an RMS norm; ``offset`` 1 where the weight is a difference from one (Gemma)."""

    weight: Tensor
    eps: float
    offset: float

    def __call__(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        out: Tensor = torch.ops.millm_native.rms_norm.default(x, self.weight, self.eps, self.offset)
        return out


def norm_forward(child: nn.Module) -> Forward | None:
    norm = recognise_norm(child)
    return None if norm is None else partial(_run_norm, norm, child.forward)


def _run_norm(norm: FusedNorm, original: Forward, hidden_states: Tensor) -> Tensor:
    if hidden_states.dtype is not norm.weight.dtype or hidden_states.stride(-1) != 1:
        return original(hidden_states)  # type: ignore[no-any-return]
    return norm(hidden_states)


def recognise_norm(child: nn.Module | None) -> FusedNorm | None:
    weight = getattr(child, "weight", None)
    eps = getattr(child, "variance_epsilon", getattr(child, "eps", None))
    if child is None or not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(eps, float):
        return None
    if "RMSNorm" not in type(child).__name__ or weight.dtype not in TOLERANCES:
        return None
    x = random_input(PROBE_ROWS, weight.shape[0], dtype=weight.dtype).to(weight.device)
    # 1 + w is more than torch's kernel on a GPU can hold in 16 bits.
    offsets = (0.0, 1.0) if weight.device.type == "cpu" else (0.0,)
    norms = (FusedNorm(weight, eps, offset) for offset in offsets)
    return next((norm for norm in norms if agree(partial(child, x), partial(norm, x))), None)
