"""Why a profile's content is refused, field by field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """``path`` leads to the field, for example ``edits[2].strength``; ``message`` is a sentence."""

    path: str
    message: str
    code: str = "invalid_value"

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class InvalidSpecError(ValueError):
    """One or more fields are wrong; all are named."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(" ".join(map(str, problems)))
        self.problems = tuple(problems)


class MissingScaleError(ValueError):
    """A strength's unit needs a number that is not known for this edit."""
