"""Steering vectors in the form of an SAE with one feature, as the engine reads them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from inference.interventions import FeatureColumns, FeatureReader

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SparseAutoencoder


class Direction:
    """A direction ``v`` (``[d]``) as one feature: its activation is ``h v``, and it writes ``v``.

    Satisfies :class:`inference.interventions.FeatureReader`.
    """

    d_sae = 1

    def __init__(self, vector: Tensor) -> None:
        self._vector = vector.float()
        self._placed = {self._vector.device: self._vector}
        self.d_in = len(vector)
        self.key = "direction " + hashlib.sha256(self._vector.numpy().tobytes()).hexdigest()

    def columns(self, features: Tensor) -> FeatureColumns:
        rows = self._vector.expand(len(features), -1)
        return FeatureColumns(write=rows, read=rows)

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        if h.device not in self._placed:  # CUDA graphs cannot contain the copy
            self._placed[h.device] = self._vector.to(h.device)
        projection: Tensor = h @ self._placed[h.device]
        return projection.unsqueeze(1).expand(-1, len(features))


class Cosine(Direction):
    """The cosine of the residual with a direction ``u`` of length 1, as an activation; 0 of a zero residual.

    Only for gates and captures: what it writes is 0.
    """

    def __init__(self, vector: Tensor) -> None:
        super().__init__(vector)
        self.key = f"cosine with {self.key}"

    def columns(self, features: Tensor) -> FeatureColumns:
        return FeatureColumns(write=self._vector.new_zeros(len(features), self.d_in))

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        norms = h.norm(dim=-1, keepdim=True)
        cosines: Tensor = super().activations(h, features) / norms.where(norms > 0, 1.0)
        return cosines


class Reconstruction:
    """Replaces what an SAE reconstructs by its reconstruction, ``decode(encode(h))``, without the error."""

    d_sae = 1

    def __init__(self, sae: SparseAutoencoder) -> None:
        self._sae = sae
        self.key = f"reconstruction by {sae.key}"
        self.d_in = sae.d_in

    def columns(self, features: Tensor) -> FeatureColumns:
        return FeatureColumns(write=torch.zeros(len(features), self._sae.math.width_out))

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        return h.new_zeros(len(h), len(features))

    def reconstruct(self, h: Tensor) -> Tensor:
        """Return the reconstruction ``[tokens, d_out]`` of residuals, or for a transcoder of MLP inputs,
        ``[tokens, d_in]``."""
        return self._sae.decode(self._sae.encode(h), h)


class Negated:
    """Another reader's activations with the opposite sign. Only for gates: what it writes is 0."""

    def __init__(self, inner: FeatureReader) -> None:
        self._inner = inner
        self.key = f"minus {inner.key}"
        self.d_in = inner.d_in
        self.d_sae = inner.d_sae

    def columns(self, features: Tensor) -> FeatureColumns:
        return FeatureColumns(write=torch.zeros(len(features), self.d_in))

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        return -self._inner.activations(h, features)
