"""Read headers and tensors of a model's files into memory of this process.

No file is mapped. If a mapped file is truncated or replaced in place, reading its pages ends the process with SIGBUS. A
tensor read into memory is a copy, and a truncated file is an error.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from types import EllipsisType

import torch
from safetensors import safe_open
from torch import Tensor

from inference.engine.kernels.pages import empty_in_huge_pages

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
NUM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


VARIANT = re.compile(r"\.(fp16|bf16|fp32|non_ema)[.-]")  # of diffusers: model.fp16.safetensors


@dataclass(frozen=True, slots=True)
class WeightHeader:
    """The header of a tensor. ``dtype`` as in safetensors: F32, BF16, I8."""

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
    """Return the headers of the model's safetensors files, without variants in other dtypes; empty if there are none.

    Raise OSError, ValueError, KeyError or SafetensorError for damaged files.
    """
    found = [file for file in sorted(path.glob("*.safetensors")) if not VARIANT.search(file.name)]
    files = weight_files(path) or found
    return [header for file in files for header in _headers(file)]


def weight_files(path: Path) -> list[Path]:
    """Return the safetensors files that transformers loads: the single one, or those that the index names.

    Raise ValueError if the index names files outside the directory, and the errors of :func:`read_headers`.
    """
    return _single_or_indexed(path, "model.safetensors")


def pickle_files(path: Path) -> list[Path]:
    """Return the pickled files that transformers loads. Raises like :func:`weight_files`."""
    return _single_or_indexed(path, "pytorch_model.bin")


def _single_or_indexed(path: Path, name: str) -> list[Path]:
    single, index = path / name, path / f"{name}.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        return []
    parts = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    if any(Path(part).name != part for part in parts):
        raise ValueError(f"{index.name} refers to files outside its folder")
    return [path / part for part in parts]


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A tensor in a file, which transformers accepts as a tensor. Indexing reads it."""

    file: Path
    header: WeightHeader
    start: int

    @property
    def dtype(self) -> torch.dtype:
        return TORCH_DTYPES[self.header.dtype]

    def __getitem__(self, index: EllipsisType) -> Tensor:
        """Read the whole tensor. Raise OSError if the file is truncated."""
        values = empty_in_huge_pages((self.header.num_bytes,), torch.uint8)
        with self.file.open("rb", buffering=0) as opened:
            opened.seek(self.start)
            _fill(opened, values, self.file.name)
        return values.view(self.dtype).view(self.header.shape)


def open_weights(files: list[Path]) -> dict[str, StoredWeight]:
    """Return the tensors of safetensors files by name. Raises like :func:`read_headers`, and ValueError for unknown
    dtypes.
    """
    return {weight.header.name: weight for file in files for weight in _stored(file)}


def load_pickles(files: list[Path]) -> dict[str, Tensor]:
    """Load all tensors of files written by torch.save, without running code in them."""
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= torch.load(file, map_location="cpu", weights_only=True, mmap=False)
    return tensors


def _stored(file: Path) -> Iterator[StoredWeight]:
    """Yield the tensors of a file. Byte ranges come from the header, which the library only validates."""
    headers = list(_headers(file))
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        places = json.loads(opened.read(length))
    for header in headers:
        if header.dtype not in TORCH_DTYPES:
            raise ValueError(f"{header.name} in {file.name} has the type {header.dtype}, which is not supported")
        yield StoredWeight(file, header, 8 + length + places[header.name]["data_offsets"][0])


def _fill(opened: FileIO, values: Tensor, name: str) -> None:
    """Read into a buffer. A single read is limited to 2 GiB."""
    memory = values.numpy().data
    while memory:
        num_read = opened.readinto(memory)
        if not num_read:
            raise OSError(f"{name} is truncated")
        memory = memory[num_read:]


def stored_dtype(headers: list[WeightHeader]) -> torch.dtype:
    """Return the dtype of the first floating-point tensor."""
    first = next((header.dtype for header in headers if header.is_float), "F32")
    return TORCH_DTYPES.get(first, torch.float32)


def pickled_bytes(path: Path) -> int:
    """Return the size of the directory's ``*.bin`` files."""
    return sum(file.stat().st_size for file in path.glob("*.bin"))


def _headers(file: Path) -> Iterator[WeightHeader]:
    with safe_open(file, "np", backend="pread") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - it is no mapping
            view = tensors.get_slice(name)
            yield WeightHeader(name, tuple(view.get_shape()), str(view.get_dtype()))
