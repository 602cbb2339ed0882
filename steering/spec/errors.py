"""Errors in the content of a profile, reported field by field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import MillmError


@dataclass(frozen=True, slots=True)
class Problem:
    """One invalid field: its path, for example ``edits[2].strength``, and a message that is a full sentence."""

    path: str
    message: str
    code: str = "invalid_value"

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class InvalidSpecError(MillmError, ValueError):
    """One or more fields are invalid; ``problems`` lists all of them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0]
        super().__init__(" ".join(map(str, problems)), param=first.path, code=first.code)
        self.problems = tuple(problems)

    @property
    def lines(self) -> list[str]:
        return [str(problem) for problem in self.problems]


class MissingScaleError(ValueError):
    """The unit of a strength needs a number that is not known for this edit."""
