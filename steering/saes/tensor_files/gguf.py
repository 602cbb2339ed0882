"""GGUF files, as far as control vectors need them: float tensors, and metadata that is text or numbers.

The file is read from the start; every count and offset is checked against the size of the file before it is used.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steering.saes.errors import InvalidSAEError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_BYTES = 1 << 30
_MAX_COUNT = 10_000
_MAX_DIMENSIONS = 4
_ALIGNMENT = "general.alignment"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_FLOATS: dict[int, np.dtype[np.generic]] = {0: np.dtype("<f4"), 1: np.dtype("<f2"), 28: np.dtype("<f8")}


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """The tensors of a file and its metadata. Lists in the metadata are represented by their length."""

    fields: dict[str, str | float]
    tensors: dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class _TensorHeader:
    """Header of a tensor. ``offset`` counts bytes from the start of the tensor data."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    offset: int


def read_gguf(path: Path, name: str) -> GGUFFile:
    """Read a file. Raise InvalidSAEError if it is damaged, too large, or holds quantised tensors."""
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise InvalidSAEError(f"{name} has {size} bytes; the limit is {_MAX_BYTES}.")
    try:
        return _read(_Reader(path.read_bytes()))
    except (struct.error, ValueError, OverflowError) as error:
        raise InvalidSAEError(f"{name} is not a valid GGUF file: {error}.") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.position:
            raise ValueError(f"expected {count} more bytes, got {len(self.data) - self.position}")
        self.position += count
        return self.data[self.position - count : self.position]

    def number(self, code: str) -> int | float:
        value: int | float = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]
        return value

    def count(self, code: str = "Q", limit: int = _MAX_COUNT) -> int:
        value = int(self.number(code))
        if value > limit:
            raise ValueError(f"the count {value} is too large")
        return value

    def text(self) -> str:
        return self.take(int(self.number("Q"))).decode("utf-8")

    def value(self, kind: int) -> str | float:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._skip_list()
        if kind not in _SCALARS:
            raise ValueError(f"the value type {kind} is unknown")
        return self.number(_SCALARS[kind])

    def _skip_list(self) -> int:
        kind, length = int(self.number("I")), int(self.number("Q"))
        if kind in _SCALARS:
            self.take(length * struct.calcsize("<" + _SCALARS[kind]))
        elif kind == _STRING:
            for _ in range(length):
                self.text()
        else:
            raise ValueError(f"the list type {kind} is not supported")
        return length


def _read(reader: _Reader) -> GGUFFile:
    if reader.take(4) != _MAGIC:
        raise ValueError("it does not start with the magic number GGUF")
    if (version := reader.number("I")) not in _VERSIONS:
        raise ValueError(f"version {version} is not supported")
    num_tensors, num_fields = reader.count(), reader.count()
    fields = {reader.text(): reader.value(int(reader.number("I"))) for _ in range(num_fields)}
    headers = [_tensor_header(reader) for _ in range(num_tensors)]
    alignment = fields.get(_ALIGNMENT, 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise ValueError(f"the alignment {alignment!r} is invalid")
    start = -(-reader.position // alignment) * alignment
    tensors = {header.name: _tensor(reader.data, start, header) for header in headers}
    if len(tensors) != len(headers):
        raise ValueError("two tensors have the same name")
    return GGUFFile(fields, tensors)


def _tensor_header(reader: _Reader) -> _TensorHeader:
    name = reader.text()
    rank = reader.count("I", _MAX_DIMENSIONS)
    shape = tuple(int(reader.number("Q")) for _ in range(rank))
    kind, offset = int(reader.number("I")), int(reader.number("Q"))
    if kind not in _FLOATS:
        raise ValueError(f"{name} is quantised (type {kind}); only F32, F16 and F64 are supported")
    return _TensorHeader(name, shape[::-1], _FLOATS[kind], offset)


def _tensor(data: bytes, start: int, header: _TensorHeader) -> NDArray[np.float32]:
    count = math.prod(header.shape)
    first = start + header.offset
    if first + count * header.dtype.itemsize > len(data):
        raise ValueError(f"{header.name} with the shape {list(header.shape)} exceeds the end of the file")
    return np.frombuffer(data, header.dtype, count, first).reshape(header.shape).astype(np.float32)
