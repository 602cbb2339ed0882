"""Reads tensors whose shapes are known beforehand from a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from steering.saes.errors import InvalidSAEError

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]
_FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})


def read_tensors(path: Path, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Exactly the named tensors, in float32 on the CPU, all finite.

    Names, shapes and dtypes are compared with the header before anything is allocated. InvalidSAEError otherwise.
    """
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            _check_names(path, set(file.keys()), set(shapes))
            for name, shape in shapes.items():
                _check_header(path, name, file.get_slice(name), shape)
            return {name: _finite(path, name, file.get_tensor(name)) for name in shapes}
    except (SafetensorError, OSError) as error:
        raise InvalidSAEError(f"{path.name} is not an intact safetensors file: {error}.") from error


def _check_names(path: Path, found: set[str], expected: set[str]) -> None:
    if missing := expected - found:
        raise InvalidSAEError(f"{path.name} lacks {', '.join(sorted(missing))}; it holds {', '.join(sorted(found))}.")
    if extra := found - expected:
        raise InvalidSAEError(
            f"{path.name} holds {', '.join(sorted(extra))}, which this architecture does not have;"
            " the configuration may belong to another SAE."
        )


def _check_header(path: Path, name: str, header: object, shape: Shape) -> None:
    found = tuple(header.get_shape())  # type: ignore[attr-defined]
    dtype = header.get_dtype()  # type: ignore[attr-defined]
    if found != shape:
        raise InvalidSAEError(f"{name} in {path.name} has the shape {list(found)}, expected is {list(shape)}.")
    if dtype not in _FLOAT_DTYPES:
        raise InvalidSAEError(f"{name} in {path.name} holds {dtype} values, expected are floating-point numbers.")


def _finite(path: Path, name: str, tensor: Tensor) -> Tensor:
    value = tensor.to(torch.float32)
    if not bool(torch.isfinite(value).all()):
        raise InvalidSAEError(f"{name} in {path.name} holds values that are not finite (NaN or infinite).")
    # A tensor of the file is a view of a memory map; a copy outlives the file and is safe against its change.
    return value.clone() if value is tensor else value
