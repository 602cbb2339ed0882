"""Gated SAEs: one pre-activation decides whether a feature fires, another one how strongly.

Both are the same product ``u = x W_enc``: it fires where ``u + b_gate > 0``, as strongly as ``relu(u exp(r_mag) +
b_mag)``. Solved for the second, ``pre > b_mag - b_gate exp(r_mag)``: a JumpReLU, which is how it is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steering.saes.jumprelu import JumpReLUSAE
from steering.saes.sae import SAEWeights

if TYPE_CHECKING:
    from torch import Tensor


class GatedSAE(JumpReLUSAE):
    """``a = (x W_enc + b_gate > 0) * relu(x (W_enc * exp(r_mag)) + b_mag)``"""


def gated_weights(
    *, encoder: Tensor, b_gate: Tensor, b_mag: Tensor, r_mag: Tensor, W_dec: Tensor, b_dec: Tensor
) -> SAEWeights:
    """``encoder`` is W_enc transposed, ``[d_sae, d_in]``."""
    gain = r_mag.double().exp()
    return SAEWeights(
        encoder=(encoder.double() * gain[:, None]).float(),
        b_enc=b_mag,
        W_dec=W_dec,
        b_dec=b_dec,
        threshold=(b_mag.double() - b_gate.double() * gain).float(),
    )
