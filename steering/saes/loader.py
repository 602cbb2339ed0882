"""Loads an SAE's weights into the normal form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from steering.saes.config import SAEConfig, SAEMath
from steering.saes.errors import InvalidSAEError
from steering.saes.files import file_sha256, regular_file
from steering.saes.preview import preview_sae
from steering.saes.registry import ARCHITECTURES
from steering.saes.sae import SAEWeights, SparseAutoencoder
from steering.saes.tensors import Shape, read_tensors

if TYPE_CHECKING:
    from torch import Tensor

_MIN_NORM = 1e-8  # a decoder row of zeros stays one


def load_sae(folder: Path, *, d_in: int | None = None) -> SparseAutoencoder:
    """The SAE in ``folder``, in float32 on the CPU.

    ``d_in`` is the width that the model has at the SAE's site, when known. InvalidSAEError for anything damaged,
    unsafe, of another width, or not supported.
    """
    config = preview_sae(folder)
    if d_in is not None and config.math.d_in != d_in:
        raise InvalidSAEError(f"The SAE reads vectors of {config.math.d_in} numbers, the model's have {d_in}.")
    path = regular_file(folder, config.weights_file)
    key = config.math.checksum(file_sha256(path))
    weights = _fold(_read_weights(path, config), config.math)
    return ARCHITECTURES[config.math.architecture](key, config.math, weights)


def weight_shapes(math: SAEMath) -> dict[str, Shape]:
    """Names and shapes of the tensors that the architecture has in SAELens' layout."""
    shapes: dict[str, Shape] = {
        "W_enc": (math.d_in, math.d_sae),
        "b_enc": (math.d_sae,),
        "W_dec": (math.d_sae, math.d_in),
        "b_dec": (math.d_in,),
    }
    if math.architecture == "jumprelu":
        shapes["threshold"] = (math.d_sae,)
    return shapes


def _read_weights(path: Path, config: SAEConfig) -> SAEWeights:
    tensors = read_tensors(path, weight_shapes(config.math))
    return SAEWeights(
        encoder=tensors["W_enc"].T.contiguous(),
        b_enc=tensors["b_enc"],
        W_dec=tensors["W_dec"],
        b_dec=tensors["b_dec"],
        threshold=tensors.get("threshold"),
    )


def _fold(weights: SAEWeights, math: SAEMath) -> SAEWeights:
    """Takes a constant scaling of the input, and TopK's ranking by decoder norms, into the weights."""
    if math.scaling_factor != 1.0:
        weights = replace(
            weights,
            encoder=weights.encoder * math.scaling_factor,
            W_dec=weights.W_dec / math.scaling_factor,
            b_dec=weights.b_dec / math.scaling_factor,
        )
    if math.rescale_acts_by_decoder_norm:
        norms: Tensor = weights.W_dec.norm(dim=-1).clamp(min=_MIN_NORM)
        weights = replace(
            weights,
            encoder=weights.encoder * norms[:, None],
            b_enc=weights.b_enc * norms,
            W_dec=weights.W_dec / norms[:, None],
        )
    return weights
