"""Fold constant factors into the weights, so that the computation does not need them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from steering.saes.config import SAEMath
from steering.saes.sae import SAEWeights

if TYPE_CHECKING:
    from torch import Tensor

_MIN_NORM = 1e-8  # keeps decoder rows of zeros unchanged


def fold(weights: SAEWeights, math: SAEMath) -> SAEWeights:
    """Fold the scaling of input and output, and the ranking by decoder norms of SAELens."""
    if math.scaling_factor != 1.0 or math.output_factor is not None:
        weights = scaled(weights, math.scaling_factor, math.output_factor)
    return by_decoder_norm(weights) if math.rescale_acts_by_decoder_norm else weights


def scaled(weights: SAEWeights, factor: float, output_factor: float | None = None) -> SAEWeights:
    """Fold factors into an SAE that reads ``h * factor`` and writes ``output_factor`` times too much.

    The activations do not change.
    """
    divisor = factor if output_factor is None else output_factor
    return replace(
        weights,
        encoder=weights.encoder * factor,
        W_dec=weights.W_dec / divisor,
        b_dec=weights.b_dec / divisor,
    )


def by_decoder_norm(weights: SAEWeights) -> SAEWeights:
    """Return the same SAE with decoder rows of norm 1; activations and thresholds are multiplied by the norms."""
    norms = decoder_norms(weights)
    return replace(
        weights,
        encoder=weights.encoder * norms[:, None],
        b_enc=weights.b_enc * norms,
        W_dec=weights.W_dec / norms[:, None],
        threshold=None if weights.threshold is None else weights.threshold * norms,
    )


def gated_by_decoder_norm(weights: SAEWeights) -> SAEWeights:
    """Apply thresholds and ranks to pre-activations times decoder norms; the activations do not change."""
    norms = decoder_norms(weights)
    threshold = None if weights.threshold is None else weights.threshold / norms
    return replace(weights, threshold=threshold, rank_scale=norms)


def decoder_norms(weights: SAEWeights) -> Tensor:
    """Return the L2 norms of the decoder rows ``[d_sae]``, never 0."""
    norms: Tensor = weights.W_dec.norm(dim=-1).clamp(min=_MIN_NORM)
    return norms
