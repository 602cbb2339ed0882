"""Write the random models as GGUF files for llama.cpp. Requires the ``gguf`` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import safe_open
from tokenizers import Tokenizer

from benchmarks.shapes import MAX_POSITIONS, Shape
from benchmarks.tokenizer import SPECIAL_TOKENS

WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
OF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NORMAL, CONTROL = 1, 3  # GGUF's token types


def write_gguf(shape: Shape, path: Path, kind: str) -> Path:
    """Write the file if it does not exist, and return its path.

    ``kind`` is the GGML type of the matrices, such as BF16 or Q8_0; norms stay float32.
    """
    target = path / f"{kind}.gguf"
    if target.exists():
        return target
    import gguf

    writer = gguf.GGUFWriter(target.with_suffix(".part"), shape.family)
    _describe(writer, shape)
    _add_tokens(writer, path)
    chosen = gguf.GGMLQuantizationType[kind]
    with safe_open(path / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            array = file.get_tensor(name).float().numpy()
            if _is_paired(shape, name):
                array = _interleaved(array, shape.kv_heads if "k_proj" in name else shape.heads)
            stored = chosen if array.ndim == 2 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target.with_suffix(".part").rename(target)


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a tensor. Raise KeyError if it has none."""
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{OF_LAYER[rest.removesuffix('.weight')]}.weight"


def _is_paired(shape: Shape, name: str) -> bool:
    """Return whether llama.cpp rotates adjacent dimensions of a head instead of its halves in this architecture."""
    return shape.family == "llama" and ("q_proj" in name or "k_proj" in name)


def _interleaved(weight: Any, heads: int) -> Any:
    """Reorder the rows of each head from halves to adjacent pairs."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def _describe(writer: Any, shape: Shape) -> None:
    writer.add_context_length(MAX_POSITIONS)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.vocab)


def _add_tokens(writer: Any, path: Path) -> None:
    vocabulary = Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab()
    names = sorted(vocabulary, key=lambda name: vocabulary[name])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types([CONTROL if name in SPECIAL_TOKENS else NORMAL for name in names])
    writer.add_token_merges(["w 0"])  # llama.cpp requires at least one
    writer.add_eos_token_id(names.index("<|im_end|>"))
    writer.add_pad_token_id(names.index("<|endoftext|>"))
