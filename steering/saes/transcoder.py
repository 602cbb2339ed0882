"""Transcoders: read what an MLP reads, and write what it writes.

They are read where the MLP begins, which is no site of ours. At their own site, the MLP's output, only what they write
can be used: a multiple of a decoder row can be added there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from steering.saes.errors import InvalidSAEError
from steering.saes.jumprelu import JumpReLUSAE
from steering.saes.sae import SparseAutoencoder
from steering.saes.standard import StandardSAE
from steering.saes.topk import TopKSAE

if TYPE_CHECKING:
    from torch import Tensor


_NOT_HERE = "A transcoder reads the MLP's input, not the site where it writes; only add is possible."


class Transcoder(SparseAutoencoder):
    """Encodes the MLP's input ``[tokens, d_in]``, and decodes to its output ``[tokens, d_out]``.

    ``out = a W_dec + b_dec + x W_skip^T``; no bias is subtracted from the input.
    """

    reads_its_site = False

    def decode(self, activations: Tensor, h: Tensor) -> Tensor:
        """``h`` is the MLP's input, which a skip connection adds to."""
        weights = self._on(h.device)
        out = activations @ weights.W_dec + weights.b_dec
        return out if weights.W_skip is None else out + h.float() @ weights.W_skip.T

    def activations(self, h: Tensor, features: Tensor) -> NoReturn:
        """An edit's residual is the MLP's output, which a transcoder does not read."""
        raise InvalidSAEError(_NOT_HERE)

    def columns(self, features: Tensor) -> NoReturn:
        """See :meth:`activations`."""
        raise InvalidSAEError(_NOT_HERE)


class ReLUTranscoder(Transcoder, StandardSAE):
    """``a = relu(pre)``"""


class JumpReLUTranscoder(Transcoder, JumpReLUSAE):
    """``a = relu(pre) * (pre > threshold)``"""


class TopKTranscoder(Transcoder, TopKSAE):
    """``a = relu(pre)`` where ``pre`` is among the token's k largest"""
