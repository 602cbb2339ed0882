"""The sampling parameters that a model's row may set for requests that do not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class _Range:
    lower: float
    upper: float
    is_integer: bool = False

    def problem(self, value: Any) -> str:
        """Why the value is refused, or nothing."""
        wanted = "an integer" if self.is_integer else "a number"
        kinds = (int,) if self.is_integer else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
            return f"must be {wanted}, not {value!r}"
        if not self.lower <= value <= self.upper:
            return f"must lie between {self.lower:g} and {self.upper:g}, not {value!r}"
        return ""


RANGES: Mapping[str, _Range] = {
    "temperature": _Range(0, 2),
    "top_p": _Range(1e-6, 1),
    "top_k": _Range(0, 1_000_000, is_integer=True),
    "min_p": _Range(0, 1),
    "typical_p": _Range(1e-6, 1),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "repetition_penalty": _Range(0.01, 10),
    "max_tokens": _Range(1, 10_000_000, is_integer=True),
}


def sampling_problems(values: Any) -> list[str]:
    """A sentence for each default that cannot be used."""
    if not isinstance(values, dict):
        return [
            f'The default sampling parameters must be a JSON object such as {{"temperature": 0.7}}, not {values!r}.'
        ]
    return [_problem(name, value) for name, value in values.items() if _problem(name, value)]


def _problem(name: str, value: Any) -> str:
    allowed = RANGES.get(name)
    if allowed is None:
        return f"{name} is no sampling parameter; those are {', '.join(RANGES)}."
    problem = allowed.problem(value)
    return f"{name} {problem}." if problem else ""
