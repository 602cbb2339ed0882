"""Split a text into sentences, each of which is spoken by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_SENTENCE = 300  # characters; longer sentences are split at commas and spaces
_SENTENCE = re.compile(r"(?<=[.!?…。！？])[\"'”’)\]]*\s+|\n+")
_CLAUSE = re.compile(r"(?<=[,;:、，；：])\s*")


def sentences(text: str) -> list[str]:
    """Split a text into sentences of at most :data:`MAX_SENTENCE` characters."""
    found: list[str] = []
    for sentence in _SENTENCE.split(text):
        found += _pieces(sentence.strip()) if sentence and sentence.strip() else []
    return found


def _pieces(sentence: str) -> Iterator[str]:
    """Split a long sentence at clauses, else at spaces, else anywhere."""
    piece = ""
    for part in _words(sentence):
        if piece and len(piece) + len(part) > MAX_SENTENCE:
            yield piece.strip()
            piece = ""
        piece += part
    if piece.strip():
        yield piece.strip()


def _words(sentence: str) -> Iterator[str]:
    for clause in _CLAUSE.split(sentence):
        if len(clause) <= MAX_SENTENCE:
            yield clause + " "
            continue
        for word in clause.split():
            yield from (word[start : start + MAX_SENTENCE - 1] + " " for start in range(0, len(word), MAX_SENTENCE - 1))
