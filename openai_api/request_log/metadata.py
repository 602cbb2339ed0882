"""What of a logged request is no text: all that is kept, or shown, where texts are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openai_api.models import RequestLog

LEFT_OUT = "left out"
TOKENS = "token_record"  # among the parameters, so that whatever keeps, hides and prunes these does it with them
TEXT_FIELDS = ("prompt", "completion")
_LEVELS = ("full", "hash", "none")


def stricter(one: str, other: str) -> str:
    """The one of `full`, `hash`, `none` that keeps less; "" says nothing."""
    return max(one or "full", other or "full", key=_LEVELS.index)


def bare_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and switches as they are; of everything that may hold a client's words only the name."""
    return {name: value if isinstance(value, int | float | bool) else LEFT_OUT for name, value in parameters.items()}


def quotes_client(status: int) -> bool:
    """Whether the error message may quote the request: refusals say what was wrong with which value."""
    return 400 <= status < 500


def without_texts(row: RequestLog) -> RequestLog:
    """The row, in memory, as those see it who may see no texts. Deferred texts are not fetched for it."""
    row.prompt = row.completion = ""
    row.parameters = bare_parameters(row.parameters)
    if quotes_client(row.status):
        row.error_message = ""
    return row
