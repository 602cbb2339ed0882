"""Tiny random models of the architectures that media endpoints run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

LANGUAGES = ("en", "de", "fr")
TEXTS = ["the quick brown fox jumps over the lazy dog", "hello world, how are you today?", "Guten Tag", "0123456789"]


def whisper_tokenizer() -> Tokenizer:
    """Return a byte-level BPE with Whisper's special tokens in Whisper's order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    names = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{name}|>" for name in LANGUAGES)]
    names += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    tokenizer.add_tokens([AddedToken(f"<|{0.02 * step:.2f}|>") for step in range(1501)])
    return tokenizer


def save_whisper(folder: Path, seed: int = 0) -> Path:
    """Save a random multilingual Whisper whose answers have timestamps and end."""
    from transformers import (
        GenerationConfig,
        PreTrainedTokenizerFast,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )

    tokenizer = whisper_tokenizer()
    ids = {name: tokenizer.token_to_id(name) for name in tokenizer.get_vocab() if name.startswith("<|")}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    torch.manual_seed(seed)
    config = WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_target_positions=64,
        decoder_start_token_id=start,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        init_std=0.4,
    )
    model: Any = WhisperForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=start,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        max_length=64,
        is_multilingual=True,
        lang_to_id={f"<|{name}|>": ids[f"<|{name}|>"] for name in LANGUAGES},
        task_to_id={"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]},
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        max_initial_timestamp_index=50,
        suppress_tokens=[ids["<|startoflm|>"], ids["<|nospeech|>"], start, *(ids[f"<|{name}|>"] for name in LANGUAGES)],
        begin_suppress_tokens=[end],
        return_timestamps=False,
        alignment_heads=[[1, 0], [1, 1]],
    )
    model.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    return folder


def save_stable_diffusion(folder: Path) -> Path:
    """Save a random Stable Diffusion of 64 x 64 pixels."""
    from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=32,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
    )
    vae = AutoencoderKL(
        block_out_channels=[32, 64],
        in_channels=3,
        out_channels=3,
        down_block_types=["DownEncoderBlock2D", "DownEncoderBlock2D"],
        up_block_types=["UpDecoderBlock2D", "UpDecoderBlock2D"],
        latent_channels=4,
    )
    config = CLIPTextConfig(
        bos_token_id=0,
        eos_token_id=2,
        hidden_size=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        pad_token_id=1,
        vocab_size=1000,
        projection_dim=32,
    )
    words = folder / "words"
    words.mkdir(parents=True)
    letters = [chr(code) for code in range(97, 123)]
    names = ["<|startoftext|>", "</w>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    (words / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    (words / "merges.txt").write_text("#version: 0.2\n")
    pipeline: Any = StableDiffusionPipeline(
        unet=unet,
        scheduler=PNDMScheduler(skip_prk_steps=True, beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012),
        vae=vae,
        text_encoder=CLIPTextModel(config),
        tokenizer=CLIPTokenizer(str(words / "vocab.json"), str(words / "merges.txt"), model_max_length=77),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder / "model")
    return folder / "model"
