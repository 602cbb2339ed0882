"""What a text or JSON column of Postgres takes."""

from __future__ import annotations

import json
from typing import Any

from core.text import is_storable
from jobs.errors import NotStorableError

MAX_BYTES = 16 * 2**20


def check_storable(value: Any, name: str) -> dict[str, Any]:
    """``value``, an object that JSON in Postgres can hold; NotStorableError names what is wrong with it."""
    if not isinstance(value, dict):
        raise NotStorableError(f"The {name} of a job must be an object, not {type(value).__name__}.")
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotStorableError(f"The {name} of a job cannot be stored as JSON: {error}") from None
    if "\\u0000" in text or not is_storable(text):
        raise NotStorableError(f"The {name} of a job holds text that Postgres refuses: NUL, or half a surrogate pair.")
    if len(text.encode()) > MAX_BYTES:
        raise NotStorableError(f"The {name} of a job takes more than {MAX_BYTES // 2**20} MiB.")
    return value
