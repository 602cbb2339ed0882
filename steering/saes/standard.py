"""ReLU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steering.saes.elementwise import ElementwiseSAE

if TYPE_CHECKING:
    from torch import Tensor


class StandardSAE(ElementwiseSAE):
    """``a = relu(pre)``"""

    def _activate(self, pre: Tensor, threshold: Tensor | None) -> Tensor:
        return pre.relu()
