"""Read and write safetensors files: eight bytes with the header's length, a JSON header, and raw little-endian values.

The format is described at https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BF16": "<u2"}
_LENGTH = 8  # bytes of the header's length


def read_safetensors(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the tensors by name, and the file's metadata. bfloat16 tensors become float32.

    Raise ValueError if the file is damaged or has tensors of an unknown type.
    """
    size = int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH + size:
        raise ValueError(f"This is no safetensors file, or it is cut off: it has {len(data)} bytes.")
    header = json.loads(data[_LENGTH : _LENGTH + size])
    metadata = header.pop("__metadata__", {})
    values = memoryview(data)[_LENGTH + size :]
    return {name: _tensor(name, entry, values) for name, entry in header.items()}, metadata


def _tensor(name: str, entry: Mapping[str, Any], values: memoryview) -> NDArray[Any]:
    kind, (start, end) = entry["dtype"], entry["data_offsets"]
    if kind not in _TYPES:
        raise ValueError(f"The tensor `{name}` has the type {kind}; supported are {', '.join(_TYPES)}.")
    if end > len(values):
        raise ValueError(f"The file is cut off: the tensor `{name}` ends at {end}, the data at {len(values)}.")
    flat = np.frombuffer(values[start:end], _TYPES[kind])
    if kind == "BF16":  # the upper half of a float32
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.reshape(entry["shape"])


def write_safetensors(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Return a file with the tensors as float32."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    blocks: list[bytes] = []
    end = 0
    for name, values in tensors.items():
        block = np.ascontiguousarray(values, "<f4").tobytes()
        start, end = end, end + len(block)
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [start, end]}
        blocks.append(block)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(_LENGTH, "little"), text, *blocks])
