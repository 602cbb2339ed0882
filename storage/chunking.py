"""Split texts into chunks at natural boundaries, measured in tokens of the embedding model.

The cost is linear in the length of the text: each stretch is tokenised a bounded number of times. Imports no Django,
because the parser's process (storage/extraction) splits what it has read.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storage.errors import ExtractionError

if TYPE_CHECKING:
    from inference.registry.model_card import ModelCard

MAX_TOKENS, OVERLAP = 800, 400  # OpenAI's defaults
SECTION = 200_000  # characters that are tokenised at once; bounds the memory for their offsets
MAX_WORD = 2**20  # characters without a space; real texts contain no such words
_WORD = re.compile(r"[^\s。、，！？；：]+")
_HEADINGS = tuple(
    re.compile(rf"^#{{{level}}}[ \t]", re.MULTILINE) for level in range(1, 7)
)  # a chunk starts at a heading
_ENDS = (  # the next chunk starts after one of these
    re.compile(r"\n[^\S\n]*\n\s*(?<=\n)"),  # of a paragraph
    re.compile(r"\n"),
    re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]"),  # of a sentence
    re.compile(r"\s+|[、，；：]"),
)


@dataclass(frozen=True, slots=True)
class Chunking:
    """The maximum number of tokens of a chunk, how many it shares with the previous one, and its maximum number of
    characters."""

    max_tokens: int = MAX_TOKENS
    overlap: int = OVERLAP
    max_chars: int = SECTION

    def fitting(self, model: ModelCard) -> Chunking:
        """Return the limits reduced to what the model accepts; the overlap shrinks in proportion."""
        special = len(model.text.encode("a")) - len(model.text.encode_plain("a"))
        most = max(1, min(self.max_tokens, model.max_model_len - special))
        overlap = min(self.overlap * most // self.max_tokens, most // 2)
        return Chunking(most, overlap, min(self.max_chars, model.text.max_chars))


def chunks_of(text: str, tokenizer: Any, chunking: Chunking, *, has_headings: bool) -> Iterator[str]:
    """Yield the chunks of a text, without empty ones. Deterministic. Raise ExtractionError if a word is too long.

    ``tokenizer`` is one of the tokenizers library. ``has_headings``: lines that start with ``#`` are Markdown headings.
    """
    check_words(text)
    for section in sections_of(text):
        for piece in _Section(section, tokenizer, chunking, has_headings=has_headings).pieces():
            if piece.strip():
                yield piece.lstrip("\r\n").rstrip()


def check_words(text: str) -> None:
    longest = max((match.end() - match.start() for match in _WORD.finditer(text)), default=0)
    if longest > MAX_WORD:
        raise ExtractionError(f"The file contains a word of {longest} characters; the limit is {MAX_WORD}.")


def sections_of(text: str, size: int = SECTION) -> Iterator[str]:
    """Yield parts of at most ``size`` characters, cut at paragraphs, else at lines, else at spaces."""
    start = 0
    while start < len(text):
        end = min(len(text), start + size)
        if end < len(text):
            seams = (text.rfind(seam, start + size // 2, end) for seam in ("\n\n", "\n", " "))
            end = next((seam + 1 for seam in seams if seam > 0), end)
        yield text[start:end]
        start = end


class _Section:
    """A section with the positions of its tokens and boundaries."""

    def __init__(self, text: str, tokenizer: Any, chunking: Chunking, *, has_headings: bool) -> None:
        self._text = text
        self._tokenizer = tokenizer
        self._chunking = chunking
        self._token_starts = _rising(start for start, _ in tokenizer.encode(text, add_special_tokens=False).offsets)
        headings = _HEADINGS if has_headings else ()
        self._seams = [
            *([match.start() for match in pattern.finditer(text)] for pattern in headings),
            *([match.end() for match in pattern.finditer(text)] for pattern in _ENDS),
        ]

    def pieces(self) -> Iterator[str]:
        start = done = 0
        while done < len(self._text):
            end = self._end_of_piece(start, done)
            if end is None:  # the overlap leaves no space for new text
                start = done
                continue
            yield self._text[start:end]
            start, done = self._start_of_next(start, end), end

    def _end_of_piece(self, start: int, done: int) -> int | None:
        """Return where the chunk that starts at ``start`` ends, after ``done``; None if it would end before ``done``.

        Tokenised alone, a chunk may have more tokens than within its section; then a shorter one is tried.
        """
        limit, most = self._chunking.max_tokens, self._chunking.max_tokens
        while True:
            end = self._cut(start, self._furthest(start, limit), done)
            if end <= done:
                return None if done > start else start + 1
            size = len(self._tokenizer.encode(self._text[start:end].strip(), add_special_tokens=False).ids)
            if size <= most or end == start + 1:
                return end
            limit = min(limit - 1, limit * most // size)
            if limit < 1:
                return None if done > start else start + 1

    def _furthest(self, start: int, num_tokens: int) -> int:
        behind = bisect_left(self._token_starts, start) + num_tokens
        end = self._token_starts[behind] if behind < len(self._token_starts) else len(self._text)
        return min(max(end, start + 1), start + self._chunking.max_chars)

    def _cut(self, start: int, end: int, done: int) -> int:
        """Return the last boundary of the best kind in the second half of the stretch; the end if there is none."""
        if end >= len(self._text):
            return end
        floor = max(start + (end - start) // 2, done)
        for seams in self._seams:
            place = bisect_right(seams, end) - 1
            if place >= 0 and seams[place] > floor:
                return seams[place]
        return end

    def _start_of_next(self, start: int, end: int) -> int:
        """Return the best boundary in the first half of the overlap; the start of the overlap if there is none."""
        if not self._chunking.overlap or end >= len(self._text):
            return end
        before = bisect_left(self._token_starts, end) - self._chunking.overlap
        first = self._token_starts[before] if before > 0 else 0
        first = max(first, end - self._chunking.max_chars // 2, start + 1)
        for seams in self._seams:
            place = bisect_left(seams, first)
            if place < len(seams) and seams[place] <= first + (end - first) // 2:
                return seams[place]
        return min(first, end)


def _rising(starts: Iterator[int]) -> Sequence[int]:
    """Return the starts without decreases: normalisers may move characters."""
    rising, highest = [], 0
    for start in starts:
        highest = max(highest, start)
        rising.append(highest)
    return rising
