"""A model's final norm and output embeddings, read from its files: the engine's copy of them is the engine's alone.

The embeddings stay on disk. A product with them reads them in pieces, on one core, so that it takes neither memory nor
workers from the engine that runs beside it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

Floats = NDArray[np.float32]

_INDEX = "model.safetensors.index.json"
_PIECE_BYTES = 8 << 20
_MAX_HEADER_BYTES = 100 << 20
_NUM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class UnembeddingError(Exception):
    """The model's files or its architecture do not allow the look; the message says why."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor of a safetensors file lies."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    start: int

    def rows(self) -> Iterator[Floats]:
        """In pieces of at most 8 MiB (one row at least), as float32 ``[rows, ...]``."""
        width = int(np.prod(self.shape[1:], dtype=np.int64))
        row_bytes = width * _NUM_BYTES[self.dtype]
        step = max(1, _PIECE_BYTES // max(1, row_bytes))
        with self.file.open("rb") as file:
            file.seek(self.start)
            for first in range(0, self.shape[0], step):
                count = min(step, self.shape[0] - first)
                data = file.read(count * row_bytes)
                if len(data) < count * row_bytes:
                    raise UnembeddingError(f"{self.file.name} ends before its tensors do.")
                yield _float32(data, self.dtype).reshape(count, *self.shape[1:])

    def whole(self) -> Floats:
        return np.concatenate(list(self.rows()))


@dataclass(frozen=True, slots=True)
class Unembedding:
    """``logits = norm(x) @ embeddings.T + bias``, as the model ends; without soft caps, which keep the order."""

    norm: nn.Module
    embeddings: StoredTensor
    bias: Floats | None

    def logits(self, direction: Floats) -> Floats:
        """``[hidden_size]`` -> one logit per row of the embeddings."""
        import torch

        with torch.inference_mode():
            x = self.norm(torch.from_numpy(direction)[None]).numpy()[0]
        # Not a matrix product: that would wake the workers of the linear algebra library.
        parts = [np.einsum("vd,d->v", piece, x, optimize=False) for piece in self.embeddings.rows()]
        logits: Floats = np.concatenate(parts)
        return logits if self.bias is None else logits + self.bias


def open_unembedding(folder: Path, *, trust_remote_code: bool = False) -> Unembedding:
    """Reads the configuration and the headers of the weights; UnembeddingError where they do not fit together."""
    module = _skeleton(folder, trust_remote_code=trust_remote_code)
    stored = _stored_tensors(folder)
    norm_name, norm = _final_norm(module)
    head_name, head = _named(module, module.get_output_embeddings(), "output embeddings")
    names = [f"{head_name}.weight"]
    if module.config.get_text_config().tie_word_embeddings:
        names.insert(0, f"{_named(module, module.get_input_embeddings(), 'input embeddings')[0]}.weight")
    embeddings = _first(stored, names)
    if embeddings.shape != tuple(head.weight.shape):
        raise UnembeddingError(f"The output embeddings are {embeddings.shape}, the configuration says otherwise.")
    bias = _first(stored, [f"{head_name}.bias"]).whole() if getattr(head, "bias", None) is not None else None
    return Unembedding(_loaded(norm, norm_name, stored), embeddings, bias)


def _skeleton(folder: Path, *, trust_remote_code: bool) -> Any:
    """The model without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def _final_norm(module: Any) -> tuple[str, nn.Module]:
    """The one norm that stands beside the decoder's layers."""
    decoder = module.get_decoder() if hasattr(module, "get_decoder") else module.base_model
    norms = [child for child in decoder.children() if "norm" in type(child).__name__.lower()]
    if len(norms) != 1:
        raise UnembeddingError(f"{type(module).__name__} has {len(norms)} norms after its layers, expected is one.")
    return _named(module, norms[0], "final norm")


def _named(module: Any, part: Any, what: str) -> tuple[str, Any]:
    for name, candidate in module.named_modules():
        if candidate is part and part is not None:
            return name, candidate
    raise UnembeddingError(f"{type(module).__name__} has no {what}.")


def _loaded(norm: nn.Module, name: str, stored: Mapping[str, StoredTensor]) -> nn.Module:
    """In float32, whatever the file has."""
    import torch

    weights = {part: torch.from_numpy(_first(stored, [f"{name}.{part}"]).whole()) for part in norm.state_dict()}
    norm.to_empty(device="cpu").float().load_state_dict(weights)
    return norm.eval()


def _first(stored: Mapping[str, StoredTensor], names: list[str]) -> StoredTensor:
    """By one of its names. Files may leave out the beginning of a module's name, or put something before it."""
    for name in names:
        if name in stored:
            return stored[name]
        alike = [tensor for key, tensor in stored.items() if name.endswith(f".{key}") or key.endswith(f".{name}")]
        if len(alike) == 1:
            return alike[0]
    raise UnembeddingError(f"The model's files have no tensor {' or '.join(names)} in float32, float16 or bfloat16.")


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    index = folder / _INDEX
    if index.is_file():
        files = {folder / str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
    else:
        files = set(folder.glob("*.safetensors"))
    if any(file.parent != folder for file in files):
        raise UnembeddingError(f"{_INDEX} names files outside of its folder.")
    return {name: tensor for file in sorted(files) for name, tensor in _header(file)}


def _header(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    """The library checks sizes and overlaps; where the bytes lie it does not tell, the header does."""
    from safetensors import safe_open

    with safe_open(str(file), framework="np"):
        pass
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        if length > _MAX_HEADER_BYTES:
            raise UnembeddingError(f"The header of {file.name} is too long.")
        header = json.loads(opened.read(length))
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in _NUM_BYTES:
            start = 8 + length + entry["data_offsets"][0]
            yield name, StoredTensor(file, tuple(entry["shape"]), entry["dtype"], start)


def _float32(data: bytes, dtype: str) -> Floats:
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, "<f2" if dtype == "F16" else "<f4").astype(np.float32)
