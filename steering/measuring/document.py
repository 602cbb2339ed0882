"""Tokenised documents, split into pieces that the model can process at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

MAX_TOKENS = 256  # of one piece: long enough for context, short enough for the activations of a wide SAE


@dataclass(frozen=True, slots=True)
class TokenisedDocument:
    """Token ids of a piece of text. ``is_ordinary`` is False for special tokens, which measurements ignore."""

    token_ids: tuple[int, ...]
    is_ordinary: tuple[bool, ...]

    @property
    def num_ordinary(self) -> int:
        return sum(self.is_ordinary)


def split_tokens(
    token_ids: Sequence[int], special_ids: frozenset[int], *, max_tokens: int = MAX_TOKENS
) -> Iterator[TokenisedDocument]:
    """Yield pieces of at most ``max_tokens``, each starting with the special tokens at the start of the text."""
    ids = list(token_ids)
    start = next((place for place, token_id in enumerate(ids) if token_id not in special_ids), len(ids))
    start = min(start, max_tokens - 1)
    beginning, rest = ids[:start], ids[start:]
    step = max_tokens - start
    for first in range(0, len(rest), step):
        piece = (*beginning, *rest[first : first + step])
        yield TokenisedDocument(piece, tuple(token_id not in special_ids for token_id in piece))


def take_tokens(documents: Iterable[TokenisedDocument], num_tokens: int) -> Iterator[TokenisedDocument]:
    """Yield each distinct document once, until there are ``num_tokens`` ordinary tokens."""
    seen: set[tuple[int, ...]] = set()
    taken = 0
    for document in documents:
        if taken >= num_tokens:
            return
        if document.num_ordinary and document.token_ids not in seen:
            seen.add(document.token_ids)
            taken += document.num_ordinary
            yield document
