"""Load the weights of an SAE."""

from __future__ import annotations

from pathlib import Path

import torch

from inference.files.unchanged import FileChangedError, unchanged
from inference.torch_threads import borrowed_workers
from steering.saes.architectures import ARCHITECTURES
from steering.saes.config import SAEMath
from steering.saes.errors import InvalidSAEError
from steering.saes.files import file_sha256
from steering.saes.folding import fold
from steering.saes.hooks import transcoder_input
from steering.saes.place import SAEPlace
from steering.saes.preview import as_place, recognise
from steering.saes.sae import SAEWeights, SparseAutoencoder
from steering.saes.tensor_files.base import is_finite


def load_sae(path: Path | SAEPlace, *, d_in: int | None = None) -> SparseAutoencoder:
    """Load the SAE of a folder, or of one file in it, in float32 on the CPU. No tensor stays memory-mapped.

    The weights are ordinary tensors also within ``torch.inference_mode``: a loaded SAE is shared, and attribution
    differentiates through it.

    ``d_in`` is the width of the model at the site of the SAE, if known. Raise InvalidSAEError for files that are
    damaged, unsafe, of another width, or not supported.
    """
    try:
        with borrowed_workers(), torch.inference_mode(mode=False):
            return _load(as_place(path), d_in)
    except FileChangedError as error:
        raise InvalidSAEError(f"{error}; load it again when the download or copy is complete.") from error


def _load(place: SAEPlace, d_in: int | None) -> SparseAutoencoder:
    converter = recognise(place)
    config = converter.preview(place)
    math = config.math
    if d_in is not None and math.d_in != d_in:
        raise InvalidSAEError(f"The SAE expects vectors of {math.d_in} values, but the model's have {d_in}.")
    with unchanged([place.path(config.weights_file)]):  # otherwise checksum and weights could be from different files
        file = converter.tensors(place)
        layout = converter.layout(config, file.headers)
        tensors = file.read(layout.shapes, integers=layout.integers, ignored=layout.ignored)
        checksum = file_sha256(file.path)
    weights = fold(converter.convert(tensors, config), math)
    _check(weights, math)
    sae = ARCHITECTURES[math.architecture](math.checksum(checksum), math, weights)
    if not sae.reads_its_site:
        sae.input_kind = transcoder_input(config.input_hook)
    return sae


def _check(weights: SAEWeights, math: SAEMath) -> None:
    """Raise InvalidSAEError for values that are not finite: folding multiplies numbers, which can overflow."""
    for name, tensor in weights.tensors().items():
        if not is_finite(tensor):
            raise InvalidSAEError(
                f"{name} is not finite (NaN or infinite) after normalisation and scales are folded in."
            )
    assert weights.encoder.shape == (math.d_sae, math.d_in)
    assert weights.W_dec.shape == (math.d_sae, math.width_out)
