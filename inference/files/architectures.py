"""Kinds of models, and the architectures that are computed exactly or refused, with the reason.

Each row is tested with a tiny random model (tests/engine/test_architectures.py), and docs/models.md is generated from
the rows. Other architectures are loaded too, and refused if the self-check finds a difference from transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args


@dataclass(frozen=True, slots=True)
class Architecture:
    """``model_type`` as in config.json. ``refusal``: why it is refused, continuing "it ..."; empty if supported."""

    model_type: str
    models: str
    notes: str = ""
    refusal: str = ""


STATE = "needs {} in its cache, which holds only keys and values"
OWN_CODE = "has its own attention code and does not use transformers' attention interface"
ALIBI = "adds a distance-based bias to attention scores (ALiBi), which the kernels do not support"
CHUNKED = "attends within chunks of the text and scales queries by its own position counter"
SPARSE = "uses sparse attention with an indexer, which the kernels do not support"

EXACT = (
    Architecture("apertus", "Apertus"),
    Architecture("arcee", "Arcee AFM"),
    Architecture("bitnet", "BitNet b1.58"),
    Architecture("cohere", "Command R", "Parallel attention and MLP."),
    Architecture(
        "cohere2", "Command R7B, Command A", "Sliding and global layers; global layers without position embeddings."
    ),
    Architecture("deepseek_v2", "DeepSeek-V2", "Multi-head latent attention; keys and values are cached uncompressed."),
    Architecture("deepseek_v3", "DeepSeek-V3, R1, Kimi K2", "As DeepSeek-V2."),
    Architecture("ernie4_5", "ERNIE 4.5"),
    Architecture("ernie4_5_moe", "ERNIE 4.5 MoE"),
    Architecture("exaone4", "EXAONE 4", "Sliding and global layers."),
    Architecture("gemma", "Gemma 1"),
    Architecture("gemma2", "Gemma 2", "Sliding and global layers, capped attention scores and logits."),
    Architecture("gemma3_text", "Gemma 3", "Sliding and global layers, each with its own RoPE."),
    Architecture("gemma3n_text", "Gemma 3n", "Layers that share keys and values each store a copy."),
    Architecture("glm", "GLM-4-9B"),
    Architecture("glm4", "GLM-4-0414"),
    Architecture("glm4_moe", "GLM-4.5, 4.6"),
    Architecture("gpt2", "GPT-2, DialoGPT", "Learned position embeddings."),
    Architecture("gpt_bigcode", "StarCoder, SantaCoder", "Multi-query attention."),
    Architecture("gpt_neo", "GPT-Neo, TinyStories", "Local and global layers, unscaled attention scores."),
    Architecture("gpt_neox", "Pythia, GPT-NeoX", "Parallel attention and MLP; partial RoPE."),
    Architecture("gpt_oss", "gpt-oss", "Attention sinks; sliding and global layers."),
    Architecture("granite", "Granite 3"),
    Architecture("granite_swa", "Granite with sliding windows", "Attention sinks; sliding and global layers."),
    Architecture("granitemoe", "Granite 3 MoE"),
    Architecture("granitemoehybrid", "Granite 4 without Mamba layers", "With Mamba layers it is refused."),
    Architecture("helium", "Helium"),
    Architecture("hunyuan_v1_dense", "Hunyuan"),
    Architecture("jetmoe", "JetMoE", "Experts also in the attention."),
    Architecture("llama", "Llama 1 to 3.3, SmolLM2, Yi, Vicuna, ..."),
    Architecture("mimo_v2_flash", "MiMo-V2-Flash", "Attention sinks; keys wider than values."),
    Architecture("minicpm3", "MiniCPM3", "Multi-head latent attention."),
    Architecture("minimax_m2", "MiniMax-M2"),
    Architecture("ministral", "Ministral 8B"),
    Architecture("ministral3", "Ministral 3"),
    Architecture("mistral", "Mistral 7B, Nemo, Small"),
    Architecture("mixtral", "Mixtral"),
    Architecture("nemotron", "Nemotron 4, Minitron", "Partial RoPE."),
    Architecture("olmo", "OLMo 1"),
    Architecture("olmo2", "OLMo 2"),
    Architecture("olmo3", "OLMo 3", "Sliding and global layers."),
    Architecture("olmoe", "OLMoE"),
    Architecture("opt", "OPT", "Learned position embeddings."),
    Architecture("persimmon", "Persimmon"),
    Architecture("phi", "Phi-1, 1.5, 2", "Parallel attention and MLP; partial RoPE."),
    Architecture("phi3", "Phi-3, Phi-3.5, Phi-4, Phi-4-mini", "LongRoPE: see below."),
    Architecture("phimoe", "Phi-3.5-MoE", "LongRoPE: see below."),
    Architecture("qwen2", "Qwen 1.5, 2, 2.5; DeepSeek-R1-Distill-Qwen"),
    Architecture("qwen2_moe", "Qwen 1.5 and 2 MoE"),
    Architecture("qwen3", "Qwen 3"),
    Architecture("qwen3_moe", "Qwen 3 MoE"),
    Architecture("seed_oss", "Seed-OSS"),
    Architecture("smollm3", "SmolLM3", "Some layers without position embeddings."),
    Architecture("stablelm", "StableLM 2, Zephyr 3B", "Partial RoPE."),
    Architecture("starcoder2", "StarCoder2", "Sliding windows."),
)

TEXT_AND_PICTURES = (
    Architecture("gemma3", "Gemma 3 4B, 12B, 27B"),
    Architecture("idefics3", "Idefics 3, SmolVLM"),
    Architecture("internvl", "InternVL 3, 3.5"),
    Architecture("llava", "LLaVA 1.5"),
    Architecture("mistral3", "Mistral Small 3.1, 3.2; Ministral 3"),
    Architecture("qwen2_5_vl", "Qwen 2.5 VL"),
    Architecture("qwen2_vl", "Qwen 2 VL"),
    Architecture("qwen3_vl", "Qwen 3 VL"),
    Architecture("smolvlm", "SmolVLM 2"),
)

REFUSED = (
    Architecture("bamba", "Bamba", refusal=STATE.format("the states of its Mamba 2 layers")),
    Architecture("bloom", "BLOOM", refusal=ALIBI),
    Architecture("codegen", "CodeGen", refusal=OWN_CODE),
    Architecture("deepseek_v32", "DeepSeek-V3.2", refusal=SPARSE),
    Architecture("diffllama", "DiffLlama", refusal="uses differential attention, which the kernels do not support"),
    Architecture("doge", "Doge", refusal="uses dynamic mask attention, which the kernels do not support"),
    Architecture("falcon", "Falcon 7B, 40B, 180B", refusal=OWN_CODE),
    Architecture("falcon_h1", "Falcon-H1", refusal=STATE.format("the states of its Mamba 2 heads")),
    Architecture("falcon_mamba", "Falcon Mamba", refusal=STATE.format("the states of its Mamba layers")),
    Architecture("glm_moe_dsa", "GLM-5", refusal=SPARSE),
    Architecture("gptj", "GPT-J", refusal=OWN_CODE),
    Architecture("jamba", "Jamba", refusal=STATE.format("the states of its Mamba layers")),
    Architecture("kimi_linear", "Kimi Linear", refusal=STATE.format("the states of its linear attention")),
    Architecture("lfm2", "LFM2", refusal=STATE.format("the last inputs of its convolutions")),
    Architecture("lfm2_moe", "LFM2 MoE", refusal=STATE.format("the last inputs of its convolutions")),
    Architecture("llama4", "Llama 4 Scout, Maverick", refusal=CHUNKED),
    Architecture("llama4_text", "Llama 4, text only", refusal=CHUNKED),
    Architecture("mamba", "Mamba", refusal=STATE.format("the states of its layers")),
    Architecture("mamba2", "Mamba 2, Codestral Mamba", refusal=STATE.format("the states of its layers")),
    Architecture("minimax", "MiniMax-Text-01", refusal=STATE.format("the states of its lightning attention")),
    Architecture("mpt", "MPT", refusal=ALIBI),
    Architecture(
        "nemotron_h", "Nemotron-H, Nemotron Nano 2 and 3", refusal=STATE.format("the states of its Mamba 2 layers")
    ),
    Architecture("olmo_hybrid", "OLMo Hybrid", refusal=STATE.format("the states of its linear attention")),
    Architecture("openai-gpt", "GPT-1", refusal=OWN_CODE),
    Architecture("qwen3_5", "Qwen 3.5", refusal=STATE.format("the states of its Gated DeltaNet layers")),
    Architecture(
        "qwen3_5_text", "Qwen 3.5, text only", refusal=STATE.format("the states of its Gated DeltaNet layers")
    ),
    Architecture("qwen3_next", "Qwen3-Next", refusal=STATE.format("the states of its Gated DeltaNet layers")),
    Architecture("recurrent_gemma", "RecurrentGemma", refusal=STATE.format("the states of its recurrent layers")),
    Architecture("rwkv", "RWKV 4", refusal=STATE.format("the states of its layers")),
    Architecture("xglm", "XGLM", refusal=OWN_CODE),
    Architecture("zamba2", "Zamba 2", refusal=STATE.format("the states of its Mamba 2 layers")),
)

_REFUSALS = {row.model_type: row for row in REFUSED}
_TEXT_AND_PICTURES = frozenset(row.model_type for row in TEXT_AND_PICTURES)


def architecture_problem(config: Mapping[str, Any]) -> str:
    """Return why a generation model with this config.json cannot be served; empty if no reason is known."""
    refused = _REFUSALS.get(str(config.get("model_type")))
    if refused is None:
        return ""
    return (
        f"It is a {refused.model_type} model ({refused.models}), which cannot be served: it {refused.refusal}. "
        "docs/models.md lists the architectures that can."
    )


TextKind = Literal["generation", "embedding", "classification"]
MediaKind = Literal["transcription", "translation", "speech", "image", "video"]
ModelKind = TextKind | MediaKind
MEDIA_KINDS = frozenset(get_args(MediaKind))

SENTENCE_TRANSFORMERS = "modules.json"  # its pipeline: transformer, pooling, normalisation
EMBEDDING_ENDINGS = ("Model", "ForMaskedLM")
GENERATION_ENDING = "ForCausalLM"
TEXT_AND_PICTURES_ENDING = "ForConditionalGeneration"
CLASSIFICATION_ENDING = "ForSequenceClassification"
# Fields of configurations of models that read or write pictures or sound.
OTHER_INPUTS = (
    "audio_config",
    "conv_dim",
    "image_size",
    "num_mel_bins",
    "sampling_rate",
    "semantic_config",
    "vision_config",
)


TRANSCRIPTION_NAMES = frozenset(
    {"WhisperForConditionalGeneration", "MoonshineForConditionalGeneration", "ParakeetForTDT"}
)
TRANSCRIPTION_ENDING = "ForCTC"
SPEECH_NAMES = frozenset({"VitsModel", "SpeechT5ForTextToSpeech", "BarkModel", "FastSpeech2ConformerWithHifiGan"})
PIPELINE_INDEX = "model_index.json"  # of a directory of diffusers
PIPELINE_ENDING = "Pipeline"
VIDEO_PIPELINES = re.compile(r"Allegro|AnimateDiff|CogVideoX|Cosmos|HunyuanVideo|Latte|LTX|Mochi|Video|Wan")
AUDIO_PIPELINES = re.compile(r"Audio|Music|Spectrogram")


def pipeline_kind(index: Mapping[str, Any]) -> MediaKind | None:
    """Return the kind of a pipeline of diffusers from its model_index.json; None if it makes neither."""
    name = str(index.get("_class_name"))
    if not name.endswith(PIPELINE_ENDING) or AUDIO_PIPELINES.search(name):
        return None
    return "video" if VIDEO_PIPELINES.search(name) else "image"


def detect_kind(path: Path, config: Mapping[str, Any]) -> ModelKind | None:
    """Return the kind of the model in a directory; None if it has none. ``config`` is the content of config.json.

    A causal language model with a sentence-transformers pipeline (Qwen3-Embedding) is an embedding model.
    """
    return kind_from_config(config, has_pipeline=(path / SENTENCE_TRANSFORMERS).is_file())


def kind_from_config(config: Mapping[str, Any], *, has_pipeline: bool) -> ModelKind | None:
    """Return the kind from config.json, or from the model_index.json of diffusers, alone.

    ``has_pipeline``: the model has a sentence-transformers pipeline.
    """
    names = config.get("architectures") or []
    names = [str(name) for name in names] if isinstance(names, list) else []
    if "_class_name" in config:
        return pipeline_kind(config)
    if any(name in TRANSCRIPTION_NAMES or name.endswith(TRANSCRIPTION_ENDING) for name in names):
        return "transcription"
    if not SPEECH_NAMES.isdisjoint(names):
        return "speech"
    if any(name.endswith(CLASSIFICATION_ENDING) for name in names):
        return "classification"  # also with a pipeline: that of a cross-encoder has no pooling
    if has_pipeline:
        return "embedding"
    if any(name.endswith(GENERATION_ENDING) for name in names):
        return "generation"
    if config.get("model_type") in _TEXT_AND_PICTURES and any(
        name.endswith(TEXT_AND_PICTURES_ENDING) for name in names
    ):
        return "generation"
    if any(name.endswith(EMBEDDING_ENDINGS) for name in names) and reads_text(config):
        return "embedding"
    return None


def reads_text(config: Mapping[str, Any]) -> bool:
    """Return whether the input of a model is text alone: classes such as CLIPModel and VitsModel also end in Model."""
    return not any(name in config for name in OTHER_INPUTS)
