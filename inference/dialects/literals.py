"""Texts as parts of a grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literals:
    """Texts as terminals. ``special_tokens``: marks that the tokenizer has as special tokens, which are no text."""

    special_tokens: Mapping[str, int]

    def terminal(self, text: str) -> str:
        parts, rest = [], text
        while rest:
            places = [(rest.find(mark), mark) for mark in self.special_tokens if mark in rest]
            place, mark = min(places, default=(len(rest), ""))
            if place:
                parts.append(json.dumps(rest[:place], ensure_ascii=False))
            if mark:
                parts.append(f"<[{self.special_tokens[mark]}]>")
            rest = rest[place + len(mark) :]
        return " ".join(parts)

    def text_before(self, rule: str, mark: str) -> Iterator[str]:
        """A rule for any text up to ``mark``, and for the mark."""
        if any(mark.startswith(special) for special in self.special_tokens):
            yield f"{rule}: TEXT {self.terminal(mark)}"
        else:
            yield f"{rule}[lazy]: TEXT {json.dumps(mark, ensure_ascii=False)}"
