"""ReLU that jumps at a threshold of each feature; also what BatchTopK and Matryoshka SAEs are saved as."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steering.saes.elementwise import ElementwiseSAE

if TYPE_CHECKING:
    from torch import Tensor


class JumpReLUSAE(ElementwiseSAE):
    """``a = relu(pre) * (pre > threshold)``, strictly greater."""

    def _activate(self, pre: Tensor, threshold: Tensor | None) -> Tensor:
        assert threshold is not None
        return pre.relu() * (pre > threshold)
