"""The k largest pre-activations of a token survive.

Whether one is among them depends on all, so even a single feature's activation needs the whole encoder.
``rescale_acts_by_decoder_norm`` is folded into the weights when loading (see :mod:`steering.saes.loader`). Where the
decoder's norms rank the features without being part of the activations, they are the weights' ``rank_scale``.
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
        rank_scale = self._on(pre.device).rank_scale
        ranked = pre if rank_scale is None else pre * rank_scale
        indices = torch.topk(ranked, self.math.k, dim=-1, sorted=False).indices
        return torch.zeros_like(pre).scatter_(-1, indices, pre.gather(-1, indices).relu())
