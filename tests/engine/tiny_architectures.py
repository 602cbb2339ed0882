"""Tiny random models of many architectures, with every length so short that a few dozen tokens go beyond it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.builders import build_tokenizer

MAX_LENGTH = 64
WINDOW = 8
ALTERNATING = ["sliding_attention", "full_attention"] * 2
COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_LENGTH,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "sliding_window": WINDOW,
    # GPT-2 and its kind
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": MAX_LENGTH,
    "n_ctx": MAX_LENGTH,
    "rotary_dim": 4,
    # experts
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": None,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA: dict[str, Any] = {
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_d_ssm": 64,
    "mamba_chunk_size": 8,
}
LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 16,
}
OWN: dict[str, dict[str, Any]] = {
    "bamba": {**MAMBA, "attn_layer_indices": [1, 3]},
    "cohere2": {"layer_types": ALTERNATING},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "deepseek_v32": {**LATENT, "index_topk": 4, "index_head_dim": 16, "index_n_heads": 2},
    "exaone4": {"layer_types": ALTERNATING},
    "falcon": {"head_dim": None, "alibi": False},
    "falcon_h1": MAMBA,
    "falcon_mamba": {"time_step_rank": 4, "state_size": 8},
    "gemma2": {"layer_types": ALTERNATING, "query_pre_attn_scalar": 8},
    "gemma3_text": {"layer_types": ALTERNATING, "query_pre_attn_scalar": 8},
    "gemma3n_text": {
        "layer_types": ALTERNATING,
        "vocab_size_per_layer_input": 400,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "activation_sparsity_pattern": None,
    },
    "glm_moe_dsa": {**LATENT, "index_topk": 4, "index_head_dim": 16, "index_n_heads": 2},
    "gpt_neo": {
        "num_layers": 4,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": WINDOW,
    },
    "gpt_neox": {"rotary_pct": 0.5},
    "granitemoehybrid": {**MAMBA, "layer_types": ["attention"] * 4},
    "jamba": {**MAMBA, "attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "llama4_text": {
        "layer_types": ["chunked_attention", "full_attention"] * 2,
        "no_rope_layers": [1, 0, 1, 0],
        "attention_chunk_size": MAX_LENGTH,
        "attn_temperature_tuning": True,
        "floor_scale": 4,
    },
    "mamba": {"time_step_rank": 4, "state_size": 8},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 8},
    "minicpm3": LATENT,
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 4, "max_seq_len": MAX_LENGTH},
    "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 8},
    "olmo3": {"layer_types": ALTERNATING},
    "olmo_hybrid": LINEAR,
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "phi3": {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 16, "sliding_window": None},
    "phimoe": {"rope_parameters": {**LONG_ROPE, "short_mscale": 1.2, "long_mscale": 1.3}, "sliding_window": None},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 2},
    "qwen3_5_text": LINEAR,
    "qwen3_next": LINEAR,
    "recurrent_gemma": {"attention_window_size": WINDOW, "lru_width": 32},
    "rwkv": {"attention_hidden_size": 32, "context_length": MAX_LENGTH},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "xglm": {"d_model": 32, "num_layers": 4, "attention_heads": 4, "ffn_dim": 64},
    "zamba2": {**MAMBA, "layer_types": ["mamba", "hybrid"] * 2, "mamba_headdim": 16, "n_mamba_heads": 4},
}


def tiny_config(model_type: str, **overrides: Any) -> Any:
    """What of the common settings the configuration class knows, with the architecture's own and ``overrides``."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    made = CONFIG_MAPPING[model_type]
    plain = made()
    known = {name: value for name, value in COMMON.items() if hasattr(plain, name) and name not in made.attribute_map}
    chosen = {**known, "vocab_size": len(build_tokenizer()), **OWN.get(model_type, {}), **overrides}
    return made(**{name: value for name, value in chosen.items() if value is not None or name == "sliding_window"})


def tiny_module(model_type: str, *, seed: int = 0, **overrides: Any) -> Any:
    """A random model whose weights are large enough for texts that do not repeat one token."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    module = AutoModelForCausalLM.from_config(tiny_config(model_type, **overrides), attn_implementation="eager")
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "norm" not in name:
                weight.normal_(std=0.2)
    return module.eval().requires_grad_(requires_grad=False)


def write_tiny_model(path: Path, model_type: str, **overrides: Any) -> Any:
    """Write one into a directory, with a tokenizer; returns the module, which is transformers' own."""
    module = tiny_module(model_type, **overrides)
    module.save_pretrained(path)
    build_tokenizer().save_pretrained(path)
    return module


SIGLIP = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 8,
}
QWEN_EYES = {
    "depth": 1,
    "hidden_size": 16,
    "embed_dim": 16,
    "num_heads": 2,
    "intermediate_size": 32,
    "out_hidden_size": 32,
    "patch_size": 8,
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [0],
}
MROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}}
# model type -> type and changes of its text configuration, vision configuration
TOWERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma3": ("gemma3_text", {}, SIGLIP),
    "idefics3": ("llama", {}, SIGLIP),
    "internvl": ("qwen2", {}, {**SIGLIP, "image_size": [16, 16], "patch_size": [8, 8]}),
    "llava": ("llama", {}, {**SIGLIP, "model_type": "clip_vision_model"}),
    "mistral3": ("mistral", {}, {**SIGLIP, "head_dim": 8}),
    "qwen2_5_vl": ("qwen2_5_vl_text", MROPE, QWEN_EYES),
    "qwen2_vl": ("qwen2_vl_text", MROPE, QWEN_EYES),
    "qwen3_vl": ("qwen3_vl_text", MROPE, QWEN_EYES),
    "smolvlm": ("llama", {}, SIGLIP),
}


def write_tiny_tower(folder: Path, model_type: str, **overrides: Any) -> Any:
    """Save a tiny random model for text and pictures, and return it."""
    import torch
    from transformers import AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    text_type, changes, vision = TOWERS[model_type]
    text = tiny_config(text_type, **changes).to_dict()
    config = CONFIG_MAPPING[model_type](text_config=text, vision_config=vision, **overrides)
    torch.manual_seed(0)
    module = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.2)
    module.generation_config.eos_token_id = 2
    module.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return module
