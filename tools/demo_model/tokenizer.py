"""The demo model's byte-level BPE tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tools.demo_model.corpus import BOS, CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS, TURN_END, TURN_START

# Words with the space before them, single digits, punctuation, and white space; every byte has a token of its own.
# Words with a capital leave the space alone: a name then has the same tokens wherever it stands (in a sentence, between
# the quotes of JSON), so that it can be copied token by token.
SPLIT = r" ?(?!\p{Lu})\p{L}+|\p{Lu}\p{L}*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"


def train_tokenizer(documents: Iterable[str], *, vocab_size: int, max_positions: int) -> PreTrainedTokenizerFast:
    """Learn the merges from `documents`; ids 0 to 3 are the special tokens, in the order of SPECIAL_TOKENS."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    backend.train_from_iterator((_without_markers(document) for document in documents), trainer)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, backend.token_to_id(BOS))]
    )
    return wrap_tokenizer(backend, max_positions)


def wrap_tokenizer(backend: Tokenizer, max_positions: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer for transformers: special tokens, chat template, context length."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BOS,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        model_max_length=max_positions,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _without_markers(document: str) -> str:
    for marker in SPECIAL_TOKENS:
        document = document.replace(marker, "")
    return document
