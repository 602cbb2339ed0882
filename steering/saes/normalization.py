"""Normalisation of the residual before an SAE encodes it, and the inverse for steps in its space.

All three kinds follow ``h = x * scale + shift`` per token, so a change of ``x`` by ``dx`` changes ``h`` by ``dx *
scale``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from steering.saes.config import Normalization

if TYPE_CHECKING:
    from torch import Tensor

_LAYER_NORM_EPS = 1e-5  # the default of SAELens; added to the standard deviation, not to the variance


@dataclass(frozen=True, slots=True)
class Normalized:
    """A normalised residual ``x`` ``[tokens, d_in]``, with scale and shift ``[tokens, 1]``, or None for 1 and 0."""

    x: Tensor
    scale: Tensor | None = None
    shift: Tensor | None = None

    def restore(self, x: Tensor) -> Tensor:
        """Return a vector of the space of the SAE in the space of the residual."""
        restored = self.restore_step(x)
        return restored if self.shift is None else restored + self.shift

    def restore_step(self, step: Tensor) -> Tensor:
        return step if self.scale is None else step * self.scale


def _none(h: Tensor) -> Normalized:
    return Normalized(h)


def _constant_norm_rescale(h: Tensor) -> Normalized:
    """Rescale to the norm sqrt(d_in). A zero vector stays zero."""
    scale = h.norm(dim=-1, keepdim=True) / math.sqrt(h.shape[-1])
    return Normalized(h / torch.where(scale > 0, scale, 1.0), scale)


def _layer_norm(h: Tensor) -> Normalized:
    """Rescale to mean 0 and (unbiased) standard deviation 1."""
    shift = h.mean(dim=-1, keepdim=True)
    centred = h - shift
    scale = centred.std(dim=-1, keepdim=True)
    return Normalized(centred / (scale + _LAYER_NORM_EPS), scale, shift)


NORMALIZERS: dict[Normalization, Callable[[Tensor], Normalized]] = {
    "none": _none,
    "constant_norm_rescale": _constant_norm_rescale,
    "layer_norm": _layer_norm,
}
