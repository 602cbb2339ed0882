"""The shipped prompts: neutral ones in two halves, and multiple-choice questions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

Half = Literal["selection", "report"]
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class NeutralPrompt:
    """A user message that says nothing about any concept.

    A strength is chosen on prompts of the half "selection" and reported on those of the half "report".
    """

    domain: str
    half: Half
    prompt: str


@dataclass(frozen=True, slots=True)
class MultipleChoiceQuestion:
    """A question with four options; ``answer`` is the place of the right one."""

    domain: str
    question: str
    options: tuple[str, ...]
    answer: int


@cache
def neutral_prompts() -> tuple[NeutralPrompt, ...]:
    """Return the 64 shipped prompts. The halves alternate, and each has four prompts of each of eight domains."""
    return tuple(NeutralPrompt(**value) for value in _records("neutral_prompts.jsonl"))


@cache
def multiple_choice_questions() -> tuple[MultipleChoiceQuestion, ...]:
    """Return the 64 shipped questions: facts, arithmetic and common sense."""
    records = _records("multiple_choice.jsonl")
    return tuple(MultipleChoiceQuestion(**{**value, "options": tuple(value["options"])}) for value in records)


def _records(name: str) -> list[Mapping[str, Any]]:
    lines = (_FOLDER / name).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]
