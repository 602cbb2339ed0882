"""The final norm and the output embeddings of a model, read from its files, because the engine does not share its own.

The embeddings stay on disk and are read in pieces on one core, so that the engine keeps its memory and its workers.
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

from inference.files.text_tower import language_model_of

if TYPE_CHECKING:
    from torch import nn

Floats = NDArray[np.float32]

# Names of the head in files whose tensors transformers renames when it loads them (GPT-NeoX, and thus Pythia).
_OTHER_HEAD_NAMES = ("embed_out.weight",)
_INDEX = "model.safetensors.index.json"
_PIECE_BYTES = 8 << 20
_MAX_HEADER_BYTES = 100 << 20
_NUM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class UnembeddingError(Exception):
    """The files or the architecture of the model are not supported; the message says why."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The location of a tensor in a safetensors file."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    start: int

    def rows(self) -> Iterator[Floats]:
        """Yield pieces of at most 8 MiB (at least one row), as float32 ``[rows, ...]``."""
        width = int(np.prod(self.shape[1:], dtype=np.int64))
        row_bytes = width * _NUM_BYTES[self.dtype]
        step = max(1, _PIECE_BYTES // max(1, row_bytes))
        with self.file.open("rb") as file:
            file.seek(self.start)
            for first in range(0, self.shape[0], step):
                count = min(step, self.shape[0] - first)
                data = file.read(count * row_bytes)
                if len(data) < count * row_bytes:
                    raise UnembeddingError(f"{self.file.name} is truncated.")
                yield _float32(data, self.dtype).reshape(count, *self.shape[1:])

    def whole(self) -> Floats:
        return np.concatenate(list(self.rows()))


@dataclass(frozen=True, slots=True)
class Gain:
    """The effect of a norm on a direction apart from its scale: subtract the mean if it centres, multiply by gamma."""

    gamma: Floats
    centres: bool

    def apply(self, direction: Floats) -> Floats:
        centred: Floats = direction - direction.mean() if self.centres else direction
        product: Floats = centred * self.gamma
        return product


@dataclass(frozen=True, slots=True)
class Unembedding:
    """Computes how much a step along a direction changes each logit, up to a scale: ``direction . gamma . W_U``.

    A direction is a change of the residual. Running the final norm on it would scale all directions to the same length
    and add the bias of the norm. Biases, scales and soft caps of the head are ignored, because they keep the order.
    """

    gain: Gain
    embeddings: StoredTensor

    def logits(self, direction: Floats) -> Floats:
        """Return one logit per row of the embeddings for a direction ``[hidden_size]``."""
        x = self.gain.apply(direction)
        # einsum without optimisation, because a matrix product would start the threads of BLAS.
        parts = [np.einsum("vd,d->v", piece, x, optimize=False) for piece in self.embeddings.rows()]
        logits: Floats = np.concatenate(parts)
        return logits

    def top_tokens(self, directions: Floats, count: int, vocab_size: int) -> NDArray[np.int64]:
        """Return the ids of the largest logits among the first ``vocab_size``, ``[n, count]``, largest first.

        For many directions ``[n, hidden_size]`` at once: one product of matrices for each piece, on this thread.
        """
        import torch

        x = torch.from_numpy(np.stack([self.gain.apply(direction) for direction in directions]))
        logits = torch.cat([x @ torch.from_numpy(piece).T for piece in self.embeddings.rows()], 1)[:, :vocab_size]
        ids: NDArray[np.int64] = logits.topk(min(count, logits.shape[1])).indices.numpy()
        return ids


def open_unembedding(folder: Path, *, trust_remote_code: bool = False) -> Unembedding:
    """Read the configuration and the headers of the weights. Raise UnembeddingError if they do not match."""
    module, stored = _skeleton(folder, trust_remote_code=trust_remote_code)
    norm_name, norm = _final_norm(module)
    head_name, head = _named(module, module.get_output_embeddings(), "output embeddings")
    names = [f"{head_name}.weight", *_OTHER_HEAD_NAMES]
    if module.config.get_text_config().tie_word_embeddings:
        names.insert(0, f"{_named(module, module.get_input_embeddings(), 'input embeddings')[0]}.weight")
    embeddings = _first(stored, names)
    if embeddings.shape != tuple(head.weight.shape):
        raise UnembeddingError(
            f"The output embeddings have the shape {embeddings.shape}, which does not match the configuration."
        )
    return Unembedding(read_gain(_loaded(norm, norm_name, stored), embeddings.shape[1]), embeddings)


def open_input_embeddings(folder: Path, *, trust_remote_code: bool = False) -> StoredTensor:
    """Return the location of the input embeddings ``[vocab, width]``. Raise UnembeddingError."""
    module, stored = _skeleton(folder, trust_remote_code=trust_remote_code)
    name, _ = _named(module, module.get_input_embeddings(), "input embeddings")
    return _first(stored, [f"{name}.weight"])


def read_gain(norm: nn.Module, width: int) -> Gain:
    """Determine from the outputs of a norm its factors and whether it centres, independent of its class.

    Raise UnembeddingError if the norm is not ``gamma * (x - mean) / deviation + bias`` or ``gamma * x / RMS + bias``.
    """
    import torch

    def run(x: Floats) -> Floats:
        with torch.inference_mode():
            found: Floats = norm(torch.from_numpy(x)[None]).numpy()[0]
        return found

    bias = run(np.zeros(width, np.float32))
    # Large, so that epsilon is negligible. Not constant, because centring would leave zeros.
    probe = np.where(np.arange(width) % 2, -1e4, 3e4).astype(np.float32)
    other = (np.random.default_rng(0).normal(size=width) * 1e4).astype(np.float32)
    for centres in (False, True):
        gain = Gain((run(probe) - bias) / _normed(probe, centres=centres), centres)
        guess = gain.gamma * _normed(other, centres=centres) + bias
        if np.allclose(run(other), guess, rtol=1e-3, atol=1e-3 * float(np.abs(guess).max())):
            return gain
    raise UnembeddingError(f"{type(norm).__name__} is neither a layer norm nor an RMS norm.")


def _normed(x: Floats, *, centres: bool) -> Floats:
    centred = x - x.mean() if centres else x
    normed: Floats = centred / np.sqrt(np.mean(centred**2, dtype=np.float32))
    return normed


def _skeleton(folder: Path, *, trust_remote_code: bool) -> tuple[Any, Mapping[str, StoredTensor]]:
    """Return the language model on the meta device, without weights, and the locations of its weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    config, stored = language_model_of(config, _stored_tensors(folder))
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code), stored


def _final_norm(module: Any) -> tuple[str, nn.Module]:
    """Return the name and the module of the only norm beside the layers of the decoder."""
    decoder = module.get_decoder() if hasattr(module, "get_decoder") else module.base_model
    norms = [child for child in decoder.children() if "norm" in type(child).__name__.lower()]
    if len(norms) != 1:
        raise UnembeddingError(f"{type(module).__name__} has {len(norms)} norms after its layers, expected one.")
    return _named(module, norms[0], "final norm")


def _named(module: Any, part: Any, what: str) -> tuple[str, Any]:
    for name, candidate in module.named_modules():
        if candidate is part and part is not None:
            return name, candidate
    raise UnembeddingError(f"{type(module).__name__} has no {what}.")


def _loaded(norm: nn.Module, name: str, stored: Mapping[str, StoredTensor]) -> nn.Module:
    """Return the norm with its weights in float32."""
    import torch

    weights = {part: torch.from_numpy(_first(stored, [f"{name}.{part}"]).whole()) for part in norm.state_dict()}
    norm.to_empty(device="cpu").float().load_state_dict(weights)
    return norm.eval()


def _first(stored: Mapping[str, StoredTensor], names: list[str]) -> StoredTensor:
    """Return the first tensor found by name. Names in files may lack the prefix of a module, or have another one."""
    for name in names:
        if name in stored:
            return stored[name]
        alike = [tensor for key, tensor in stored.items() if name.endswith(f".{key}") or key.endswith(f".{name}")]
        if len(alike) == 1:
            return alike[0]
    raise UnembeddingError(f"The model's files contain no tensor {' or '.join(names)} in float32, float16 or bfloat16.")


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    index = folder / _INDEX
    if index.is_file():
        files = {folder / str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
    else:
        files = set(folder.glob("*.safetensors"))
    if any(file.parent != folder for file in files):
        raise UnembeddingError(f"{_INDEX} refers to files outside its directory.")
    return {name: tensor for file in sorted(files) for name, tensor in _header(file)}


def _header(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Yield the tensors of a file. The library checks sizes and overlaps, the header has the byte offsets."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="np", backend="pread"):
            pass
    except SafetensorError as error:
        raise UnembeddingError(f"{file.name} is not a valid safetensors file: {error}.") from error
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
