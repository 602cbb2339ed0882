"""Tiny random models in the Hugging Face layout, and requests for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inference.engine.messages import GenerationRequest, SamplingParams

ARCHITECTURES = ("llama", "qwen3", "gemma3")
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRAINING_TEXT = (
    "The cat sat by the sea and the sun was warm.",
    "A happy fox ran over the hill, and a sad owl flew home in the rain.",
    "user assistant system Tell me a story. Once upon a time there was a little house.",
    "Ä ö ü ß é 你好 世界 😀 🐈 — “quotes” and numbers 0123456789.",
)


def build_model(path: Path, architecture: str = "llama", *, seed: int = 0, **overrides: Any) -> Path:
    """Write a random model of the architecture with a tokenizer and a ChatML template; returns ``path``.

    The weights are larger than a fresh initialisation's, so that greedy decoding does not repeat one token.
    """
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(path)
    config = build_config(architecture, len(tokenizer), **overrides)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.normal_(std=0.25)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(path)
    return path


def build_tokenizer() -> Any:
    """A byte-level BPE tokenizer of about 400 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_config(architecture: str, vocab_size: int, **overrides: Any) -> Any:
    """Four layers, grouped heads; Gemma 3 has sliding and global layers with a window of 8."""
    from transformers import Gemma3TextConfig, LlamaConfig, Qwen3Config

    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "bos_token_id": None,
        "tie_word_embeddings": False,
    }
    own: dict[str, Any] = {}
    if architecture == "gemma3":
        types = ["sliding_attention", "full_attention"] * 2
        own = {"sliding_window": 8, "layer_types": types, "query_pre_attn_scalar": 8}
    classes = {"llama": LlamaConfig, "qwen3": Qwen3Config, "gemma3": Gemma3TextConfig}
    return classes[architecture](**{**common, **own, **overrides})


def build_request(prompt: tuple[int, ...] = (5, 6, 7), *, model: str = "tiny", **overrides: Any) -> GenerationRequest:
    """A greedy request of 8 tokens that does not stop early. Sampling fields and request fields may be given."""
    names = ("request_id", "intervention", "index", "priority", "captures", "scoring", "segment_rules", "cache_salt")
    own = {name: overrides.pop(name) for name in names if name in overrides}
    sampling = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, **overrides})
    return GenerationRequest(
        request_id=own.pop("request_id", "r"), model=model, prompt_token_ids=prompt, sampling=sampling, **own
    )
