"""The supported SAE architectures, each an activation function on top of :class:`~steering.saes.sae.SparseAutoencoder`.

A gated SAE is computed as JumpReLU. Its gate and magnitude share one product ``u = x W_enc``: a feature fires where
``u + b_gate > 0``, with the value ``relu(u exp(r_mag) + b_mag)``. Solved for the second term this is the condition
``pre > b_mag - b_gate exp(r_mag)``.

A transcoder reads the input of an MLP and writes the output of that MLP. An edit changes its activations there, and
adds the change of the output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from inference.interventions import FeatureColumns
from steering.saes.sae import SAEWeights, SparseAutoencoder

if TYPE_CHECKING:
    from torch import Tensor


class ElementwiseSAE(SparseAutoencoder):
    """An SAE whose features do not depend on each other, so that only the selected ones are computed."""

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        weights = self._on(h.device)
        x = self._encoder_input(h.float(), weights)
        threshold = None if weights.threshold is None else weights.threshold[features]
        return self._activate(linear(x, weights.encoder[features], weights.b_enc[features]), threshold)

    def columns(self, features: Tensor) -> FeatureColumns:
        """Return columns with ``b_dec`` folded into the bias, and the zero of ReLU into the threshold."""
        weights, features = self._on(torch.device("cpu")), features.cpu()
        read, bias = weights.encoder[features], weights.b_enc[features]
        if self.math.apply_b_dec_to_input:
            bias = (bias.double() - read.double() @ weights.b_dec.double()).float()
        threshold = torch.zeros_like(bias) if weights.threshold is None else weights.threshold[features].clamp(min=0)
        return FeatureColumns(weights.W_dec[features], read, bias, threshold, self.math.normalization)


class StandardSAE(ElementwiseSAE):
    """``a = relu(pre)``"""

    def _activate(self, pre: Tensor, threshold: Tensor | None) -> Tensor:
        return pre.relu()


class JumpReLUSAE(ElementwiseSAE):
    """``a = relu(pre) * (pre > threshold)``, strictly greater. BatchTopK and Matryoshka SAEs are saved in this form."""

    def _activate(self, pre: Tensor, threshold: Tensor | None) -> Tensor:
        assert threshold is not None
        return pre.relu() * (pre > threshold)


class TopKSAE(SparseAutoencoder):
    """``a = relu(pre)`` where ``pre`` is among the k largest of the token, else 0.

    Even a single activation needs the whole encoder. ``rescale_acts_by_decoder_norm`` is folded into the weights at
    load time; norms that only rank the features are ``rank_scale`` of the weights.
    """

    def _activate(self, pre: Tensor, threshold: Tensor | None) -> Tensor:
        assert self.math.k is not None
        rank_scale = self._on(pre.device).rank_scale
        ranked = pre if rank_scale is None else pre * rank_scale
        indices = torch.topk(ranked, self.math.k, dim=-1, sorted=False).indices
        return torch.zeros_like(pre).scatter_(-1, indices, pre.gather(-1, indices).relu())


class GatedSAE(JumpReLUSAE):
    """``a = (x W_enc + b_gate > 0) * relu(x (W_enc * exp(r_mag)) + b_mag)``"""


def gated_weights(
    *, encoder: Tensor, b_gate: Tensor, b_mag: Tensor, r_mag: Tensor, W_dec: Tensor, b_dec: Tensor
) -> SAEWeights:
    """Return JumpReLU weights of a gated SAE. ``encoder`` is W_enc transposed, ``[d_sae, d_in]``."""
    gain = r_mag.double().exp()
    return SAEWeights(
        encoder=(encoder.double() * gain[:, None]).float(),
        b_enc=b_mag,
        W_dec=W_dec,
        b_dec=b_dec,
        threshold=(b_mag.double() - b_gate.double() * gain).float(),
    )


class Transcoder(SparseAutoencoder):
    """Encodes the input of an MLP ``[tokens, d_in]``, and decodes to its output ``[tokens, d_out]``.

    ``out = a W_dec + b_dec + x W_skip^T``; no bias is subtracted from the input.
    """

    reads_its_site = False

    def decode(self, activations: Tensor, h: Tensor) -> Tensor:
        """Return the output; ``h`` is the input of the MLP, used by a skip connection."""
        weights = self._on(h.device)
        out = activations @ weights.W_dec + weights.b_dec
        return out if weights.W_skip is None else out + h.float() @ weights.W_skip.T


class ReLUTranscoder(Transcoder, StandardSAE):
    """``a = relu(pre)``"""


class JumpReLUTranscoder(Transcoder, JumpReLUSAE):
    """``a = relu(pre) * (pre > threshold)``"""


class TopKTranscoder(Transcoder, TopKSAE):
    """``a = relu(pre)`` where ``pre`` is among the token's k largest"""


ARCHITECTURES: dict[str, type[SparseAutoencoder]] = {
    "standard": StandardSAE,
    "jumprelu": JumpReLUSAE,
    "topk": TopKSAE,
    "gated": GatedSAE,
    "transcoder": ReLUTranscoder,
    "jumprelu_transcoder": JumpReLUTranscoder,
    "topk_transcoder": TopKTranscoder,
}
