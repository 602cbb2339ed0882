"""The tensors of a model's files by name, shape and type, from the files' headers: no weights are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from safetensors import safe_open

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
NUM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


@dataclass(frozen=True, slots=True)
class WeightHeader:
    """One tensor. ``dtype`` is written as safetensors does: F32, BF16, I8."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def num_bytes(self) -> int:
        return self.num_elements * NUM_BYTES.get(self.dtype, 1)


def read_headers(path: Path) -> list[WeightHeader]:
    """Of the safetensors files that make up the model in the directory; empty without any.

    Raises OSError, ValueError, KeyError or SafetensorError where they are damaged.
    """
    return [header for file in _files(path) for header in _headers(file)]


def pickled_bytes(path: Path) -> int:
    """Size of the directory's ``*.bin`` files."""
    return sum(file.stat().st_size for file in path.glob("*.bin"))


def _files(path: Path) -> list[Path]:
    """As transformers chooses them: the index's, else the one file, else all that there are."""
    index = path / INDEX
    if index.is_file():
        return [path / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    return sorted(path.glob("*.safetensors"))


def _headers(file: Path) -> Iterator[WeightHeader]:
    # "np" maps the file for reading; "pt" would ask for as much memory as the file is large.
    with safe_open(file, "np") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - it is no mapping
            view = tensors.get_slice(name)
            yield WeightHeader(name, tuple(view.get_shape()), str(view.get_dtype()))
