"""SAEs whose features do not depend on each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from inference.interventions import FeatureColumns
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

    def columns(self, features: Tensor) -> FeatureColumns:
        """``b_dec`` is taken into the bias, and the floor of relu into the threshold."""
        weights, features = self._on(torch.device("cpu")), features.cpu()
        read, bias = weights.encoder[features], weights.b_enc[features]
        if self.math.apply_b_dec_to_input:
            bias = (bias.double() - read.double() @ weights.b_dec.double()).float()
        threshold = torch.zeros_like(bias) if weights.threshold is None else weights.threshold[features].clamp(min=0)
        return FeatureColumns(weights.W_dec[features], read, bias, threshold, self.math.normalization)
