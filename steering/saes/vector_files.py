"""Read files of steering vectors: one direction per layer, to be added to the output of the layer.

Three kinds of files are supported, each with one tensor ``[d]`` per layer: safetensors, npz, and the GGUF control
vectors of repeng and llama.cpp. In the first two, a name ends with the number of the layer (``direction.12``,
``layer_12``, ``12``); a single tensor with any other name can be used for every layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference.files.gguf import GGUFError, read_gguf
from inference.interventions import Site
from steering.saes.config import MAX_D_IN
from steering.saes.errors import InvalidSAEError
from steering.saes.files import regular_file
from steering.saes.tensor_files.registry import open_tensors

_ARCHITECTURE = "controlvector"
_GGUF_NAME = re.compile(r"direction\.(\d{1,4})")
_NAME = re.compile(r"(?:.*[._])?(?:directions?|layers?|blocks?|vectors?)?[._]?(\d{1,4})")


@dataclass(frozen=True, slots=True, eq=False)
class StoredVector:
    """A vector ``[d]`` float32, not normalised. ``site`` is None if the file names no layer."""

    site: Site | None
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VectorFile:
    """Vectors in the order of layers. ``model_hint`` is the architecture of the model, such as llama."""

    vectors: tuple[StoredVector, ...]
    model_hint: str = ""

    def at(self, layer: int) -> StoredVector:
        """Return the vector of a layer. Raise InvalidSAEError with the layers of the file if there is none."""
        for vector in self.vectors:
            if vector.site is None:
                return StoredVector(Site(layer), vector.values)
            if vector.site.layer == layer:
                return vector
        layers = ", ".join(str(vector.site.layer) for vector in self.vectors if vector.site)
        raise InvalidSAEError(f"There is no vector for layer {layer}. Available layers: {layers}.")


def read_vectors(path: Path) -> VectorFile:
    """Read a file. Raise InvalidSAEError if it is damaged, unsafe, not finite, or not one vector per layer."""
    real = regular_file(path.parent, path.name)
    if path.suffix == ".gguf":
        return _from_gguf(real, path.name)
    file = open_tensors(real, path.name)
    tensors = file.read({name: header.shape for name, header in file.headers.items()})
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    if len(arrays) == 1:
        ((name, values),) = arrays.items()
        match = _NAME.fullmatch(name)
        return VectorFile((StoredVector(Site(int(match[1])) if match else None, _checked(name, values)),))
    return VectorFile(_by_layer(arrays, _NAME, path.name))


def _from_gguf(path: Path, name: str) -> VectorFile:
    """Read a GGUF file. As in llama.cpp, ``direction.8`` is added to the output of layer 8."""
    try:
        file = read_gguf(path, name)
    except GGUFError as error:
        raise InvalidSAEError(str(error)) from error
    if file.fields.get("general.architecture") != _ARCHITECTURE:
        raise InvalidSAEError(
            f"{name} is not a control vector, its architecture is {file.fields.get('general.architecture')!r}."
        )
    arrays = {key: tensor.read() for key, tensor in file.tensors.items()}
    return VectorFile(_by_layer(arrays, _GGUF_NAME, name), str(file.fields.get("controlvector.model_hint", "")))


def _by_layer(
    arrays: Mapping[str, NDArray[np.float32]], pattern: re.Pattern[str], file: str
) -> tuple[StoredVector, ...]:
    vectors: dict[int, NDArray[np.float32]] = {}
    for name, values in arrays.items():
        match = pattern.fullmatch(name)
        if match is None:
            raise InvalidSAEError(f"{file} contains {name!r}, whose name has no layer.")
        if int(match[1]) in vectors:
            raise InvalidSAEError(f"{file} contains two vectors for layer {int(match[1])}.")
        vectors[int(match[1])] = _checked(name, values)
    if len({len(values) for values in vectors.values()}) > 1:
        raise InvalidSAEError(f"The vectors in {file} have different widths.")
    if not vectors:
        raise InvalidSAEError(f"{file} contains no vectors.")
    return tuple(StoredVector(Site(layer), vectors[layer]) for layer in sorted(vectors))


def _checked(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    values = values.squeeze(0) if values.ndim == 2 and values.shape[0] == 1 else values
    if values.ndim != 1 or not 0 < len(values) <= MAX_D_IN:
        raise InvalidSAEError(
            f"{name} must be a vector of at most {MAX_D_IN} values, got the shape {list(values.shape)}."
        )
    if not np.isfinite(values).all():
        raise InvalidSAEError(f"{name} contains values that are not finite (NaN or infinite).")
    if not values.any():
        raise InvalidSAEError(f"{name} must not be zero.")
    return values
