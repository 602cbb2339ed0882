"""Pydantic's validation errors as the contract's error: named, bounded, and without pydantic's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from openai_api.errors import MAX_PROBLEMS, ApiError, quote

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

TAG = "~"  # starts the names of union branches, which no client should see

_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unsupported_parameter",
    "unsupported_parameter": "unsupported_parameter",
    "invalid_prompt": "invalid_prompt",
    "invalid_schema": "invalid_schema",
    "invalid_question": "invalid_value",
    "invalid_tool_choice": "invalid_value",
}
_SAYS_INPUT = {"too_short", "too_long", "unsupported_parameter", "missing_content", "invalid_prompt", "invalid_schema"}


def api_error(error: ValidationError) -> ApiError:
    """One 400 for all problems; ``param`` and ``code`` are those of the first."""
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    lines = [_sentence(problem) for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"And {len(problems) - MAX_PROBLEMS} more problems.")
    return ApiError(400, " ".join(lines), code=_code(first["type"]), param=param_name(first["loc"]))


def param_name(location: Sequence[str | int]) -> str:
    """``("messages", 0, "~user", "content")`` -> ``messages[0].content``."""
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part != "[key]" and not part.startswith(TAG):
            name += f".{quote(part)}" if name else quote(part)
    return name


def _sentence(problem: ErrorDetails) -> str:
    name, text = param_name(problem["loc"]), problem["msg"].rstrip(".")
    if problem["type"] == "missing":
        return f"{name}: this field is required."
    if problem["type"] in _SAYS_INPUT:
        return f"{name}: {text[:1].lower()}{text[1:]}."
    return f"{name}: {text[:1].lower()}{text[1:]}, not {_quoted_input(problem['input'])}."


def _quoted_input(value: object) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(value)}"
    return f"“{quote(value)}”" if isinstance(value, str) else quote(value)


def _code(problem_type: str) -> str:
    if problem_type in _CODES:
        return _CODES[problem_type]
    return "invalid_type" if problem_type.endswith(("_type", "_from_float")) else "invalid_value"
