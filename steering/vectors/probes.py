"""Linear probes: how the product of a residual and a vector becomes a value."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearProbe:
    """The value of a product ``h v``: ``h v + bias``, or its logistic function with ``sigmoid``."""

    bias: float = 0.0
    sigmoid: bool = False

    def value(self, product: float) -> float:
        total = product + self.bias
        if not self.sigmoid:
            return total
        return 1 / (1 + math.exp(-total)) if total >= 0 else math.exp(total) / (1 + math.exp(total))

    def product(self, value: float) -> float:
        """Return the product that has this value; with ``sigmoid`` the value must be between 0 and 1, exclusive."""
        total = math.log(value) - math.log1p(-value) if self.sigmoid else value
        return total - self.bias
