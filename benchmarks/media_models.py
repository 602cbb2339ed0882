"""Random media models in the shapes of published ones, and a recording."""

from __future__ import annotations

import copy
import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.media.tiny import save_stable_diffusion, save_vits, save_whisper

RATE = 16_000
WHISPER_BASE: dict[str, Any] = {
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2_048,
    "decoder_ffn_dim": 2_048,
    "max_target_positions": 128,  # random weights write until the end: as much as speech has in half a minute
    "init_std": 0.02,
}


def save_whisper_base(folder: Path) -> Path:
    """Save Whisper base's shape with a small vocabulary.

    It writes as many tokens as it may in each window, and no times within one, so that all programs do the same work.
    """
    from transformers import AutoTokenizer, WhisperConfig, WhisperForConditionalGeneration

    save_whisper(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tiny: Any = WhisperForConditionalGeneration.from_pretrained(folder)
    config = WhisperConfig(**{**tiny.config.to_dict(), **WHISPER_BASE})
    model: Any = WhisperForConditionalGeneration(config)
    model.generation_config = copy.deepcopy(tiny.generation_config)
    model.generation_config.max_length = WHISPER_BASE["max_target_positions"]
    times = tokenizer.convert_tokens_to_ids([f"<|{0.02 * step:.2f}|>" for step in range(1, 1_500)])
    model.generation_config.suppress_tokens += [tokenizer.convert_tokens_to_ids("<|endoftext|>"), *times]
    model.save_pretrained(folder)
    return folder


def save_mms(folder: Path) -> Path:
    """Save MMS's shape: VITS with its default sizes."""
    from transformers import VitsConfig, VitsModel

    save_vits(folder)
    tiny = VitsConfig.from_pretrained(folder)
    torch.manual_seed(0)
    model: Any = VitsModel(VitsConfig(vocab_size=tiny.vocab_size))
    model.save_pretrained(folder)
    return folder


def save_sd15(folder: Path) -> Path:
    """Save the U-Net of Stable Diffusion 1.5 with a small text encoder and autoencoder."""
    from diffusers import StableDiffusionPipeline, UNet2DConditionModel

    path = save_stable_diffusion(folder)
    pipeline: Any = StableDiffusionPipeline.from_pretrained(path, safety_checker=None)
    torch.manual_seed(0)
    pipeline.unet = UNet2DConditionModel(sample_size=64, cross_attention_dim=32)
    pipeline.save_pretrained(path)
    return path


def save_recording(path: Path, seconds: float) -> Path:
    """Write a WAV file of noise under a tone."""
    time = np.arange(int(RATE * seconds)) / RATE
    noise = np.random.default_rng(0).standard_normal(len(time))
    samples = 0.2 * np.sin(2 * np.pi * 220 * time) + 0.05 * noise
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32_767).astype("<i2").tobytes())
    return path
