"""A model's vocabulary as llguidance takes it.

Made from our own reading of the tokens instead of llguidance's reading of tokenizer.json: that parses the whole file
once more, and both hold the GIL for as long as they take (0.5 s against 1.2 s for 150k tokens).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from inference.grammars import GrammarError
from inference.token_bytes import token_bytes_reader

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class _Vocabulary:
    """What ``llguidance.TokenizerWrapper`` wants to find."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, size: int, eos_token_id: int) -> None:
        self._backend = tokenizer.backend_tokenizer
        self.eos_token_id = eos_token_id
        added = self._backend.get_added_tokens_decoder()
        self.special_token_ids = sorted({i for i, token in added.items() if token.special} | {eos_token_id})
        bytes_of = token_bytes_reader(self._backend)
        self.tokens = [b""] * size  # ids that no token has, as of padded embeddings, stay empty: never allowed
        for text, token_id in self._backend.get_vocab().items():
            self.tokens[token_id] = str(text).encode() if token_id in added else bytes_of(text)

    def __call__(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)


def read_vocabulary(tokenizer: Any, vocab_size: int, eos_token_ids: Collection[int]) -> LLTokenizer:
    """``vocab_size`` is the number of logits. GrammarError where nothing could end an output."""
    from llguidance import LLTokenizer, TokenizerWrapper

    eos = _end_tokens(tokenizer, eos_token_ids)
    vocabulary = _Vocabulary(tokenizer, max(vocab_size, len(tokenizer)), eos[0])
    return LLTokenizer(TokenizerWrapper(vocabulary), eos_token=eos)


def _end_tokens(tokenizer: Any, eos_token_ids: Collection[int]) -> list[int]:
    """The model's, else some special token: a grammar that may end or go on needs one to say which."""
    known = sorted(i for i in eos_token_ids if i < len(tokenizer)) or list(tokenizer.all_special_ids[:1])
    if not known:
        raise GrammarError("This model has no token that could end its output.")
    return known
