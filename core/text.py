"""Text and JSON that Postgres can store: no NUL, no surrogates, no NaN or infinity."""

from __future__ import annotations

import math
import re

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

Json = str | int | float | bool | list["Json"] | dict[str, "Json"] | None


def clean_text(text: str, max_length: int | None = None) -> str:
    """Return ``text`` with U+FFFD for characters that a text column refuses, truncated to ``max_length``."""
    cleaned = _UNSTORABLE.sub(REPLACEMENT, text)
    return cleaned if max_length is None else cleaned[:max_length]


def is_storable(text: str) -> bool:
    """Return whether a text column accepts ``text`` unchanged."""
    return _UNSTORABLE.search(text) is None


def clean_json(value: object) -> Json:
    """Return ``value`` so that jsonb accepts it: non-finite numbers become their names, other objects their repr."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean_json(item) for item in value]
    return clean_text(repr(value))
