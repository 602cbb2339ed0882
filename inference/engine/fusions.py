"""Runs the small operations of decoder layers as one kernel each, without a class of our own per model.

A transformers module is recognised by its parts, and its ``forward`` is replaced on the instance only after both have
been run on the same random input and agree. What is not recognised, or does not agree, stays as it is. On a GPU that
is the norms, by torch's own kernel; on the CPU all, by ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from inference.engine import native
from inference.engine.fused_attention import attention_forward
from inference.engine.fused_layer import layer_forward
from inference.engine.fused_mlp import mlp_forward
from inference.engine.fused_norm import norm_forward
from inference.engine.fusion_probe import TOLERANCES, Forward


@dataclass(frozen=True, slots=True)
class FusionReport:
    """How many modules of each kind run fused."""

    norms: int
    attentions: int
    mlps: int
    layers: int

    def __str__(self) -> str:
        return f"{self.norms} norms, {self.attentions} attentions, {self.mlps} MLPs, {self.layers} layers fused"


def fuse(module: nn.Module) -> FusionReport:
    """Fuse what can be, from the parts to the whole; on the CPU nothing without the C++ kernels."""
    children, (dtype, device) = list(module.modules()), next((p.dtype, p.device) for p in module.parameters())
    if dtype not in TOLERANCES or (device.type == "cpu" and not native.active().is_native):
        return FusionReport(0, 0, 0, 0)
    if device.type != "cpu":
        return FusionReport(sum(_replace(child, norm_forward(child)) for child in children), 0, 0, 0)
    # The attentions first: they look at the plain norms inside.
    attentions = sum(_replace(child, attention_forward(child, dtype)) for child in children)
    norms = sum(_replace(child, norm_forward(child)) for child in children)
    mlps = sum(_replace(child, mlp_forward(child, dtype)) for child in children)
    layers = sum(_replace(child, layer_forward(child, dtype)) for child in children)
    return FusionReport(norms, attentions, mlps, layers)


def _replace(child: nn.Module, fused: Forward | None) -> bool:
    if fused is None:
        return False
    child.forward = fused
    return True
