"""Activation functions for batch invariance, where no kernel of ours computes them.

torch computes SiLU and GELU with other instructions at the end of a thread's share of a tensor than before, so the bits
of a value depend on its place. Operations that are exact to the last bit, and exp and tanh, do not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

ROOT_OF_TWO_OVER_PI = 0.7978845608028654


class OrderedActivation(nn.Module):
    """An elementwise function, computed in float32 and rounded once, in place of the module ``replaced``."""

    def __init__(self, compute: Callable[[Tensor], Tensor], replaced: nn.Module) -> None:
        super().__init__()
        self._compute = compute
        self.replaced = replaced

    def forward(self, x: Tensor) -> Tensor:
        return self._compute(x.float()).to(x.dtype)


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def gelu_tanh(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.tanh((x + x * x * x * 0.044715) * ROOT_OF_TWO_OVER_PI))


KNOWN: tuple[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], ...] = (
    (functional.silu, silu),
    (partial(functional.gelu, approximate="tanh"), gelu_tanh),
)


def order_activations(module: nn.Module) -> None:
    """Replace the activation functions of MLPs that compute a known one."""
    probe = torch.linspace(-4, 4, 65)
    for parent in list(module.modules()):
        original = getattr(parent, "act_fn", None)
        if not isinstance(original, nn.Module) or next(original.parameters(), None) is not None:
            continue
        result = original(probe)
        for function, ordered in KNOWN:
            if torch.equal(result, function(probe)):
                parent.act_fn = OrderedActivation(ordered, original)
                break


def restore_activations(module: nn.Module) -> None:
    """Undo :func:`order_activations`."""
    for parent in list(module.modules()):
        ordered = getattr(parent, "act_fn", None)
        if isinstance(ordered, OrderedActivation):
            parent.act_fn = ordered.replaced
