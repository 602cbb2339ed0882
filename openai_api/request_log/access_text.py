"""A row of the trail of the log, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openai_api.models import LogAccess
from openai_api.request_log.visible_text import visible_text

ORDER = ("conditions", "format", "texts")  # the database keeps none; what else there is comes after these
WORDS = {("texts", True): "with texts", ("texts", False): "without texts"}


def access_text(access: LogAccess) -> str:
    """What was asked for, the conditions of a search as its form names them."""
    names = [name for name in ORDER if name in access.detail]
    names += sorted(access.detail.keys() - names)
    return visible_text(", ".join(part for name in names for part in _parts(name, access.detail[name])))


def _parts(name: str, value: Any) -> Iterator[str]:
    if name == "conditions" and isinstance(value, dict):
        yield from _conditions(value)
    elif isinstance(value, bool) and (name, value) in WORDS:
        yield WORDS[name, value]
    else:
        yield f"{name}: {value}"


def _conditions(conditions: dict[str, Any]) -> Iterator[str]:
    """An export without any is of the whole log, which has to be said."""
    if not conditions:
        yield "all requests"
    for name, value in conditions.items():
        yield f"words: {value}" if name == "text" else f"{name}: {value}"
