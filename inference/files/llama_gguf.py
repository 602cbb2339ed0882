"""Convert a GGUF model of the Llama architecture to a directory in the layout of Hugging Face.

Weights are dequantised and saved as bfloat16 safetensors. Only byte-level BPE tokenizers whose pre-tokeniser is listed
in ``_PRE_TOKENIZERS`` are supported; everything else is refused by name.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.files.gguf import GGUFError, GGUFFile, GGUFTensor, read_gguf

Progress = Callable[[int, int], None]

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL]},
}
_CONTROL = 3  # GGUF's type of special tokens


@dataclass(frozen=True, slots=True)
class _Fields:
    """The metadata of a file, with the types that the conversion needs."""

    values: Mapping[str, object]

    def text(self, name: str) -> str:
        return str(self._get(name, str))

    def whole(self, name: str) -> int:
        return int(self._get(name, int))

    def real(self, name: str) -> float:
        """Return the shortest decimal number that is the same float32."""
        return float(str(np.float32(self._get(name, int, float))))

    def list(self, name: str) -> tuple[Any, ...]:
        value: tuple[Any, ...] = self._get(name, tuple)
        return value

    def _get(self, name: str, *kinds: type) -> Any:
        value = self.values.get(name)
        if not isinstance(value, kinds):
            raise GGUFError(f"The GGUF file's field {name} is missing or invalid, got {str(value)[:100]!r}.")
        return value


def convert_llama(source: Path, target: Path, progress: Progress) -> None:
    """Write the model of the GGUF file ``source`` into the existing directory ``target``.

    ``progress`` is called with the number of converted tensors and of all. Raise GGUFError for files that are damaged
    or not supported, OSError if files cannot be read or written.
    """
    file = read_gguf(source, source.name)
    fields = _Fields(file.fields)
    if fields.text("general.architecture") != "llama":
        raise GGUFError(f"{source.name} has the architecture {fields.text('general.architecture')}, not llama.")
    documents = {
        "config.json": _config(fields, is_tied="output.weight" not in file.tensors),
        "generation_config.json": _generation_config(fields),
        "tokenizer.json": _tokenizer(fields),
        "tokenizer_config.json": _tokenizer_config(fields),
    }
    for name, document in documents.items():
        (target / name).write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", "utf-8")
    (target / "chat_template.jinja").write_text(fields.text("tokenizer.chat_template"), "utf-8")
    _write_weights(file, fields, target / "model.safetensors", progress)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of ``values`` as bfloat16, rounded to nearest, ties to even. Values must be finite."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + rounding) >> np.uint32(16)).astype(np.uint16)


def _write_weights(file: GGUFFile, fields: _Fields, path: Path, progress: Progress) -> None:
    """Write the tensors one after the other: the header's length as u64, the header as JSON, the data."""
    heads = {
        "attn_q": fields.whole("llama.attention.head_count"),
        "attn_k": fields.whole("llama.attention.head_count_kv"),
    }
    header = _header(file).encode("utf-8")
    with path.open("wb") as output:
        output.write(struct.pack("<Q", len(header)) + header)
        for number, (name, tensor) in enumerate(file.tensors.items(), start=1):
            values = _read(name, tensor)
            kind = name.split(".")[2] if name.startswith("blk.") else ""
            values = _halves(values, heads[kind]) if kind in heads else values
            output.write(to_bfloat16(values).astype("<u2").tobytes())
            progress(number, len(file.tensors))


def _header(file: GGUFFile) -> str:
    """Return the header of a safetensors file, padded to a multiple of 8 bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in file.tensors.items():
        start, end = end, end + 2 * math.prod(tensor.shape)
        header[_name(name)] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"))
    return text + " " * (-len(text) % 8)


def _read(name: str, tensor: GGUFTensor) -> NDArray[np.float32]:
    values = tensor.read()
    if not np.isfinite(values).all():
        raise GGUFError(f"The GGUF file's tensor {name} contains values that are not finite.")
    return values


def _name(name: str) -> str:
    """Return the name of a tensor of llama.cpp in transformers' Llama."""
    if name in _WHOLE:
        return _WHOLE[name]
    match name.split("."):
        case ["blk", layer, kind, "weight"] if layer.isdecimal() and kind in _OF_LAYER:
            return f"model.layers.{layer}.{_OF_LAYER[kind]}.weight"
    raise GGUFError(f"The GGUF file has the tensor {name}, which is not supported.")


def _halves(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder the rows of each head: llama.cpp rotates adjacent pairs of dimensions, transformers the two halves."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _config(fields: _Fields, *, is_tied: bool) -> dict[str, Any]:
    heads, hidden = fields.whole("llama.attention.head_count"), fields.whole("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": fields.whole("tokenizer.ggml.bos_token_id"),
        "dtype": "bfloat16",
        "eos_token_id": fields.whole("tokenizer.ggml.eos_token_id"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields.whole("llama.feed_forward_length"),
        "max_position_embeddings": fields.whole("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": fields.whole("llama.block_count"),
        "num_key_value_heads": fields.whole("llama.attention.head_count_kv"),
        "pad_token_id": fields.whole("tokenizer.ggml.padding_token_id"),
        "rms_norm_eps": fields.real("llama.attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_theta": fields.real("llama.rope.freq_base"), "rope_type": "default"},
        "tie_word_embeddings": is_tied,
        "vocab_size": len(fields.list("tokenizer.ggml.tokens")),
    }


def _generation_config(fields: _Fields) -> dict[str, Any]:
    return {f"{role}_token_id": fields.whole(f"tokenizer.ggml.{key}_token_id") for role, key in _ROLES.items()}


_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding"}


def _tokenizer_config(fields: _Fields) -> dict[str, Any]:
    tokens = fields.list("tokenizer.ggml.tokens")
    roles = {
        f"{role}_token": tokens[fields.whole(f"tokenizer.ggml.{key}_token_id")]
        for role, key in (_ROLES | {"unk": "unknown"}).items()
    }
    return {
        "tokenizer_class": "TokenizersBackend",
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields.whole("llama.context_length"),
        **roles,
    }


def _tokenizer(fields: _Fields) -> dict[str, Any]:
    """Return the ``tokenizer.json`` of a byte-level BPE tokenizer."""
    model, kind = fields.text("tokenizer.ggml.model"), fields.text("tokenizer.ggml.pre")
    if model != "gpt2" or kind not in _PRE_TOKENIZERS:
        raise GGUFError(f"The GGUF file's tokenizer {model} with the pre-tokeniser {kind} is not supported.")
    tokens, kinds = fields.list("tokenizer.ggml.tokens"), fields.list("tokenizer.ggml.token_type")
    special = [index for index, kind in enumerate(kinds) if kind == _CONTROL]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special_token(index, tokens[index]) for index in special],
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[kind],
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields.list("tokenizer.ggml.merges")],
        },
    }


def _special_token(index: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, **flags, "special": True}
