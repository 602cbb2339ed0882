"""SAEs whose features do not depend on each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import linear

from steering.saes.sae import SparseAutoencoder

if TYPE_CHECKING:
    from torch import Tensor


class ElementwiseSAE(SparseAutoencoder):
    """Computes the encoder's columns of the selected features only."""

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        weights = self._on(h.device)
        x = self._encoder_input(h.float(), weights)
        threshold = None if weights.threshold is None else weights.threshold[features]
        return self._activate(linear(x, weights.encoder[features], weights.b_enc[features]), threshold)
