"""A steering vector in the form of an SAE with one feature, as the engine reads it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from inference.interventions import FeatureColumns

if TYPE_CHECKING:
    from torch import Tensor


class Direction:
    """A direction ``v`` (``[d]``) as one feature: its activation is ``h v``, and it writes ``v``.

    Satisfies :class:`inference.interventions.FeatureReader`.
    """

    d_sae = 1

    def __init__(self, vector: Tensor) -> None:
        self._vector = vector.float()
        self.d_in = len(vector)
        self.key = "direction " + hashlib.sha256(self._vector.numpy().tobytes()).hexdigest()

    def columns(self, features: Tensor) -> FeatureColumns:
        rows = self._vector.expand(len(features), -1)
        return FeatureColumns(write=rows, read=rows)

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        projection: Tensor = h @ self._vector.to(h.device)
        return projection.unsqueeze(1).expand(-1, len(features))
