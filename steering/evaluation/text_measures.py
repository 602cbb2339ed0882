"""Measures of texts, as pure functions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

REPEAT_LENGTH = 4
_WORD = re.compile(r"\w+(?:['’]\w+)*")


def perplexity(logprobs: Iterable[float]) -> float | None:
    """Return exp of the mean negative log-probability (nats) of all tokens together; None without tokens."""
    values = list(logprobs)
    if not values:
        return None
    mean = -math.fsum(values) / len(values)
    return math.exp(mean) if mean < 700 else math.inf


def repeat_rate(token_ids: Sequence[int], length: int = REPEAT_LENGTH) -> float | None:
    """Return the share of a text's n-grams that occurred in it before: 1 - distinct / all. None without n-grams."""
    grams = _grams(token_ids, length)
    return 1 - len(set(grams)) / len(grams) if grams else None


def distinct(texts: Iterable[Sequence[int]], length: int) -> float | None:
    """Return distinct-n: the share of different n-grams of all texts together; None without n-grams."""
    grams = [gram for text in texts for gram in _grams(text, length)]
    return len(set(grams)) / len(grams) if grams else None


def word_rate(texts: Iterable[str], words: Iterable[str]) -> float | None:
    """Return the share of the texts' words that are in the list, ignoring case; None without words."""
    listed = tuple(words)
    counts = [count_words(text, listed) for text in texts]
    num_words = sum(number for _, number in counts)
    return sum(found for found, _ in counts) / num_words if num_words else None


def count_words(text: str, words: Iterable[str]) -> tuple[int, int]:
    """Return how many of the text's words are in the list, ignoring case, and how many words it has."""
    listed = {word.casefold() for word in words}
    found = [word.casefold() for word in _WORD.findall(text)]
    return sum(word in listed for word in found), len(found)


def finite(value: float | None) -> float | None:
    """Return the value, or None if JSON cannot represent it."""
    return value if value is not None and math.isfinite(value) else None


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _grams(token_ids: Sequence[int], length: int) -> list[tuple[int, ...]]:
    return [tuple(token_ids[first : first + length]) for first in range(len(token_ids) - length + 1)]
