"""Tiny random models of the architectures that media endpoints run."""

from __future__ import annotations

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
