"""A tokenizer of transformers as plain data, for a process that has no use for transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class PlainTokenizer:
    """The attributes of a fast tokenizer that miLLM uses, under the names that transformers gives them.

    ``kind``: the name of its class. ``special_ids``: the ids of the tokens in ``special_tokens_map``.
    """

    kind: str
    tokenizer_json: str
    num_tokens: int
    special_tokens_map: Mapping[str, str]
    special_ids: Mapping[str, int]
    all_special_ids: tuple[int, ...]
    chat_template: str | Mapping[str, str] | None

    @classmethod
    def of(cls, tokenizer: Any) -> PlainTokenizer:
        """Copy a fast tokenizer of transformers."""
        special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
        return cls(
            kind=type(tokenizer).__name__,
            tokenizer_json=tokenizer.backend_tokenizer.to_str(),
            num_tokens=len(tokenizer),
            special_tokens_map=special,
            special_ids={token: int(tokenizer.convert_tokens_to_ids(token)) for token in special.values()},
            all_special_ids=tuple(tokenizer.all_special_ids),
            chat_template=tokenizer.chat_template,
        )

    @cached_property
    def backend_tokenizer(self) -> Any:
        """Build the tokenizer of the library ``tokenizers``."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.tokenizer_json)

    def __len__(self) -> int:
        return self.num_tokens

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "backend_tokenizer"}

    def convert_tokens_to_ids(self, token: str) -> int:
        """Return the id of a special token."""
        return self.special_ids[token]
