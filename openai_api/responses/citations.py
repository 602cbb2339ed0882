"""Citations in an answer: the numbers of results that the model put between marks, taken out of the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openai_api.responses.search_results import CITATION_END, CITATION_START

MAX_MARK = 8  # characters of a citation; what is longer is text
Annotation = dict[str, Any]


class CitationReader:
    """Feed it text as it comes. ``sources`` are the results that the model has seen, from number 1 on; they may grow.

    A number that is no result's stays in the text.
    """

    def __init__(self, sources: Sequence[Mapping[str, Any]]) -> None:
        self._sources = sources
        self._held = ""
        self._length = 0  # of the text without citations

    def feed(self, text: str) -> Iterator[str | Annotation]:
        """Text and annotations, in their order. What may become a citation is held back."""
        self._held += text
        while self._held:
            start = self._held.find(CITATION_START)
            if start < 0:
                yield self._text(len(self._held))
                return
            if start:
                yield self._text(start)
            end = self._held.find(CITATION_END, 0, MAX_MARK)
            if end < 0 and len(self._held) < MAX_MARK and CITATION_START not in self._held[1:]:
                return
            annotation = self._annotation(self._held[1:end]) if end > 0 else None
            if annotation is None:
                yield self._text(1)
            else:
                self._held = self._held[end + 1 :]
                yield annotation

    def finish(self) -> Iterator[str]:
        if self._held:
            yield self._text(len(self._held))

    def _text(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        self._length += length
        return text

    def _annotation(self, number: str) -> Annotation | None:
        place = int(number) - 1 if number.isascii() and number.isdecimal() else -1
        if not 0 <= place < len(self._sources):
            return None
        source = self._sources[place]
        return {
            "type": "file_citation",
            "file_id": source.get("file_id") or "",
            "filename": source.get("filename") or "",
            "index": self._length,
        }
