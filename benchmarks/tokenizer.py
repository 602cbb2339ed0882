"""A tokenizer of any vocabulary size without training: the bytes, and synthetic words for the other ids."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FIRST_WORD = len(SPECIAL_TOKENS) + 256  # token ids from here on are words, each of which decodes to text


def build_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Build the tokenizer. Text is encoded byte by byte.

    The first ids are special tokens, followed by the 256 bytes and the words " w0", " w1", ...
    """
    if vocab_size <= FIRST_WORD:
        raise ValueError(f"`vocab_size` must be more than {FIRST_WORD}, got {vocab_size}.")
    names = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"Ġw{i}" for i in range(vocab_size - len(names))]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",  # noqa: S106 - no password
        pad_token="<|endoftext|>",  # noqa: S106
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
