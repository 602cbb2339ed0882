"""GGUF files of very small Llamas, written byte by byte after the published description of the format."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

F32, Q4_1, Q8_0 = 0, 3, 8
ALIGNMENT = 32
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "Ġ hell")
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
OF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tokens() -> list[str]:
    """Special tokens, the digits and letters that tests use, and the results of the merges."""
    letters = [*"0123456789", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ"]
    return [*SPECIAL, *letters, *(merge.replace(" ", "") for merge in MERGES)]


def llama(*, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens()),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 50_000.0},
        tie_word_embeddings=tied,
        max_position_embeddings=128,
    )
    return LlamaForCausalLM(config).eval()


def write_llama(path: Path, model: LlamaForCausalLM, *, kind: int = F32, **fields: Any) -> Path:
    """Write the model with matrices of ``kind``. ``fields`` replace metadata; None removes one."""
    config = model.config
    tensors = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.float().numpy()
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = _pairs(values, heads)
        tensors[_gguf_name(name)] = (values, kind if values.ndim == 2 else F32)
    path.write_bytes(gguf_bytes({**_metadata(config), **fields}, tensors))
    return path


def gguf_bytes(fields: Mapping[str, Any], tensors: Mapping[str, tuple[np.ndarray, int]]) -> bytes:
    kept = {name: value for name, value in fields.items() if value is not None}
    head, headers, data = b"".join(_text(name) + _value(value) for name, value in kept.items()), b"", b""
    for name, (values, kind) in tensors.items():
        data += b"\0" * (-len(data) % ALIGNMENT)
        sizes = struct.pack(f"<I{values.ndim}Q", values.ndim, *values.shape[::-1])
        headers += _text(name) + sizes + struct.pack("<IQ", kind, len(data))
        data += quantised(values, kind)
    front = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(kept)) + head + headers
    return front + b"\0" * (-len(front) % ALIGNMENT) + data


def quantised(values: np.ndarray, kind: int) -> bytes:
    """Return the bytes of float32 values in blocks of 32, rounded to the nearest step."""
    if kind == F32:
        return values.astype("<f4").tobytes()
    result = b""
    for block in values.astype(np.float32).reshape(-1, 32):
        if kind == Q8_0:
            scale = np.float16(np.abs(block).max() / 127)
            result += scale.tobytes() + np.round(block / np.float32(scale)).astype(np.int8).tobytes()
        else:
            scale, low = np.float16((block.max() - block.min()) / 15), np.float16(block.min())
            steps = np.clip(np.round((block - np.float32(low)) / np.float32(scale)), 0, 15).astype(np.uint8)
            result += scale.tobytes() + low.tobytes() + (steps[:16] | steps[16:] << 4).tobytes()
    return result


def _metadata(config: LlamaConfig) -> dict[str, Any]:
    names = tokens()
    return {
        "general.architecture": "llama",
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 50_000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": [3 if name in SPECIAL else 1 for name in names],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def _gguf_name(name: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in whole:
        return f"{whole[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{OF_LAYER[rest]}.weight"


def _pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of each head from halves to adjacent pairs, as llama.cpp rotates them."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(value: str | float | Sequence[Any]) -> bytes:
    match value:
        case str():
            return struct.pack("<I", 8) + _text(value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(item) for item in value)
        case _:
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
