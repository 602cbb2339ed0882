"""The k largest pre-activations of a token survive.

Whether one is among them depends on all, so even a single feature's activation needs the whole encoder.
``rescale_acts_by_decoder_norm`` is folded into the weights when loading (see :mod:`steering.saes.loader`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from steering.saes.sae import SparseAutoencoder

if TYPE_CHECKING:
    from torch import Tensor


class TopKSAE(SparseAutoencoder):
    """``a = relu(pre)`` where ``pre`` is among the token's k largest, else 0."""

    def _activate(self, pre: Tensor, threshold: Tensor | None) -> Tensor:
        assert self.math.k is not None
        values, indices = torch.topk(pre, self.math.k, dim=-1, sorted=False)
        return torch.zeros_like(pre).scatter_(-1, indices, values.relu())
