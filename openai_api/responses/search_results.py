"""What a search of files found, as the model reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CITATION_START, CITATION_END = "【", "】"
NOTHING = "No text was found."
NOT_KEPT = "The results of this search are not at hand any more."


def results_text(results: Sequence[Mapping[str, Any]] | None, *, first: int = 1) -> str:
    """Numbered from ``first`` on, so that the answer can cite them."""
    if results is None:
        return NOT_KEPT
    if not results:
        return NOTHING
    return "\n\n".join(_result_text(number, result) for number, result in enumerate(results, first))


def _result_text(number: int, result: Mapping[str, Any]) -> str:
    return f"{CITATION_START}{number}{CITATION_END} {result.get('filename') or 'file'}\n{result.get('text') or ''}"
