"""Read GGUF files: control vectors and models, with float tensors and the quantisations Q4_1 and Q8_0.

The file is read from the start; every count and offset is checked against the size of the file before it is used.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_BYTES = 1 << 30
_MAX_COUNT = 10_000
_MAX_DIMENSIONS = 4
_ALIGNMENT = "general.alignment"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_Q4_1, _Q8_0 = 3, 8
_BLOCK = 32  # values of a quantised block
_TYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype("<f4"),
    1: np.dtype("<f2"),
    28: np.dtype("<f8"),
    _Q4_1: np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("values", "u1", _BLOCK // 2)]),
    _Q8_0: np.dtype([("scale", "<f2"), ("values", "i1", _BLOCK)]),
}
_SUPPORTED = "only F32, F16, F64, Q4_1 and Q8_0 are supported"

Value = str | float | tuple[str, ...] | tuple[float, ...]


class GGUFError(ValueError):
    """The file is damaged, too large, or holds tensors of a type that is not supported."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor in the memory of its file. ``shape`` has the order of numpy, the fastest dimension last."""

    shape: tuple[int, ...]
    kind: int
    data: NDArray[Any]

    def read(self) -> NDArray[np.float32]:
        """Return the values, dequantised in float32 as ggml does."""
        values = _dequantised(self.kind, self.data) if self.kind in (_Q4_1, _Q8_0) else self.data
        return values.reshape(self.shape).astype(np.float32)


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """The tensors of a file and its metadata."""

    fields: dict[str, Value]
    tensors: dict[str, GGUFTensor]


@dataclass(frozen=True, slots=True)
class _TensorHeader:
    """Header of a tensor. ``offset`` counts bytes from the start of the tensor data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def read_gguf(path: Path, name: str) -> GGUFFile:
    """Read a file. ``name`` is its name in messages. Raise GGUFError, and OSError if it cannot be read."""
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise GGUFError(f"{name} has {size} bytes; the limit is {_MAX_BYTES}.")
    try:
        return _read(_Reader(path.read_bytes()))
    except (struct.error, ValueError, OverflowError) as error:
        raise GGUFError(f"{name} is not a valid GGUF file: {error}.") from error


def _dequantised(kind: int, blocks: NDArray[Any]) -> NDArray[np.float32]:
    """Return the values ``[blocks, 32]``. Q4_1: scale * q + minimum, low nibbles first; Q8_0: scale * q."""
    scale = blocks["scale"].astype(np.float32)[:, None]
    if kind == _Q8_0:
        return scale * blocks["values"].astype(np.float32)
    nibbles = np.concatenate([blocks["values"] & 15, blocks["values"] >> 4], axis=1)
    return scale * nibbles.astype(np.float32) + blocks["minimum"].astype(np.float32)[:, None]


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

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._list()
        if kind not in _SCALARS:
            raise ValueError(f"the value type {kind} is unknown")
        return self.number(_SCALARS[kind])

    def _list(self) -> tuple[str, ...] | tuple[float, ...]:
        kind, length = int(self.number("I")), int(self.number("Q"))
        if kind in _SCALARS:
            data = self.take(length * struct.calcsize("<" + _SCALARS[kind]))
            return struct.unpack(f"<{length}{_SCALARS[kind]}", data)
        if kind != _STRING:
            raise ValueError(f"the list type {kind} is not supported")
        return tuple(self.text() for _ in range(length))


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
    if kind not in _TYPES:
        raise ValueError(f"{name} is quantised (type {kind}); {_SUPPORTED}")
    return _TensorHeader(name, shape[::-1], kind, offset)


def _tensor(data: bytes, start: int, header: _TensorHeader) -> GGUFTensor:
    dtype, count = _TYPES[header.kind], math.prod(header.shape)
    if header.kind in (_Q4_1, _Q8_0):
        if not header.shape or header.shape[-1] % _BLOCK:
            raise ValueError(f"{header.name} with the shape {list(header.shape)} is not a multiple of {_BLOCK} wide")
        count //= _BLOCK
    first = start + header.offset
    if first + count * dtype.itemsize > len(data):
        raise ValueError(f"{header.name} with the shape {list(header.shape)} exceeds the end of the file")
    return GGUFTensor(header.shape, header.kind, np.frombuffer(data, dtype, count, first))
