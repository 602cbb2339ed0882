"""Templates with slots and choices, expanded with a seeded random generator."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

Slots = Mapping[str, str | Sequence[str]]
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")
_SENTENCE_START = re.compile(r"((?:^|[.!?] )[\"']?)([a-z])")


def expand(template: str, slots: Slots, rng: random.Random) -> str:
    """Resolve `[a|b]` choices (innermost first) and `{slot}` names until none is left.

    A slot with several strings picks one of them; `{Slot}` is `{slot}` with a capital. Raise KeyError for an unknown
    slot.
    """
    text = template
    while _CHOICE.search(text) or _SLOT.search(text):
        while _CHOICE.search(text):
            text = _CHOICE.sub(lambda match: rng.choice(match.group(1).split("|")), text)
        text = _SLOT.sub(lambda match: _value(match.group(1), slots, rng), text)
    return _ARTICLE.sub(r"\1n ", text)


def sentence(template: str, slots: Slots, rng: random.Random) -> str:
    """Return `expand` with capitals at the start of each sentence and a full stop (`?` after a leading "was it")."""
    text = expand(template, slots, rng)
    text = _SENTENCE_START.sub(lambda match: match.group(1) + match.group(2).upper(), text)
    if text[-1] in '.!?"':
        return text
    return text + ("?" if text.startswith("Was it") else ".")


def word_list(text: str) -> tuple[str, ...]:
    """Split a text at whitespace."""
    return tuple(text.split())


def _value(name: str, slots: Slots, rng: random.Random) -> str:
    if name in slots:
        return _pick(slots[name], rng)
    value = _pick(slots[name[0].lower() + name[1:]], rng)
    return value[0].upper() + value[1:]


def _pick(value: str | Sequence[str], rng: random.Random) -> str:
    return value if isinstance(value, str) else rng.choice(value)
