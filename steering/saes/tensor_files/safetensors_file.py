"""Safetensors files, read and not memory-mapped: truncating a mapped file would kill the process with SIGBUS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from steering.saes.errors import InvalidSAEError
from steering.saes.tensor_files.base import Header, Shape, TensorFile

if TYPE_CHECKING:
    from torch import Tensor

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_INTEGERS = frozenset({"I64", "I32", "I16", "I8", "U8"})


class SafetensorsFile(TensorFile):
    """A safetensors file. The library checks that tensors do not overlap and that no bytes are missing."""

    def __init__(self, path: Path, name: str) -> None:
        try:
            with safe_open(str(path), framework="np", backend="pread") as file:
                headers = {name: _header(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except (SafetensorError, OSError) as error:
            raise _damaged(name, error) from error
        super().__init__(path, name, headers)

    def _tensor(self, name: str) -> Tensor:
        try:
            with safe_open(str(self.path), framework="pt", device="cpu", backend="pread") as file:
                tensor: Tensor = file.get_tensor(name)
                return tensor
        except (SafetensorError, OSError) as error:
            raise _damaged(self.name, error) from error


def header_of(shape: Shape, dtype: str) -> Header:
    """Return a header; ``dtype`` is the name of the type in safetensors files."""
    return Header(shape, dtype, dtype in _FLOATS, dtype in _INTEGERS)


def _header(part: object) -> Header:
    return header_of(tuple(part.get_shape()), part.get_dtype())  # type: ignore[attr-defined]


def _damaged(name: str, error: Exception) -> InvalidSAEError:
    return InvalidSAEError(f"{name} is not a valid safetensors file: {error}.")
