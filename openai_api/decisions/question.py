"""A question about the input, and the labels of which the model's answer is one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from openai_api.decisions.input import Instructions
from openai_api.responses.schemas.items import text_of
from openai_api.schemas.base import Part

MAX_LABELS = 255
MAX_LABEL = 512  # characters
MAX_NAME = 256
YES_NO = ("Yes", "No")

Name = Annotated[str, Field(max_length=MAX_NAME)]
Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL)]
Description = Annotated[str, Field(max_length=16_384)]


class PredicateQuestion(Part):
    """How likely is it that a statement about the input is true?"""

    type: Literal["predicate"]
    instructions: Instructions
    name: Name | None = None

    @property
    def text(self) -> str:
        return (
            f"Statement: {text_of(self.instructions)}\nIs the statement true? Answer with Yes or No, and nothing else."
        )

    @property
    def labels(self) -> tuple[str, ...]:
        return YES_NO


class Option(Part):
    """A string and a boolean of the same text are two options."""

    value: Label | bool
    description: Description | None = None


class ChoiceQuestion(Part):
    type: Literal["choice"]
    instructions: Instructions
    choices: list[Option] = Field(min_length=2, max_length=MAX_LABELS)
    name: Name | None = None

    @property
    def text(self) -> str:
        return _list_text(self.instructions, "Options", self.labels, (each.description for each in self.choices))

    @property
    def labels(self) -> tuple[str, ...]:
        return written_labels([each.value for each in self.choices])


class Level(Part):
    label: Label
    description: Description | None = None


class ScoreQuestion(Part):
    """Levels are ordered, the lowest first."""

    type: Literal["score"]
    instructions: Instructions
    levels: list[Level] = Field(min_length=2, max_length=MAX_LABELS)
    name: Name | None = None

    @property
    def text(self) -> str:
        title = "Levels, from the lowest to the highest"
        return _list_text(self.instructions, title, self.labels, (each.description for each in self.levels))

    @property
    def labels(self) -> tuple[str, ...]:
        return written_labels([each.label for each in self.levels])


AnyQuestion = PredicateQuestion | ChoiceQuestion | ScoreQuestion


def _kind(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"~{kind}" if kind in {"predicate", "choice", "score"} else None


Question = Annotated[
    Annotated[PredicateQuestion, Tag("~predicate")]
    | Annotated[ChoiceQuestion, Tag("~choice")]
    | Annotated[ScoreQuestion, Tag("~score")],
    Discriminator(
        _kind,
        custom_error_type="invalid_question",
        custom_error_message="each question needs a type out of predicate, choice, score",
    ),
]


def written_labels(values: list[str | bool]) -> tuple[str, ...]:
    """Each as the model is to write it.

    Where one text begins another one they are all written as JSON: there no text begins another, so that an answer
    is one of them alone, and their probabilities can be compared.
    """
    plain = tuple(json.dumps(value) if isinstance(value, bool) else value for value in values)
    if not _has_beginning_of_another(plain):
        return plain
    return tuple(json.dumps(value, ensure_ascii=False) for value in values)


def _has_beginning_of_another(texts: Iterable[str]) -> bool:
    """In the order of texts a beginning stands right before one of those that go on from it."""
    ordered = sorted(texts)
    return any(later.startswith(earlier) for earlier, later in pairwise(ordered))


def _list_text(instructions: Any, title: str, labels: Iterable[str], descriptions: Iterable[str | None]) -> str:
    lines = [
        f"- {label}: {description}" if description else f"- {label}"
        for label, description in zip(labels, descriptions, strict=True)
    ]
    options = "\n".join(lines)
    return (
        f"{text_of(instructions)}\n\n{title}:\n{options}\n\n"
        "Answer with one of them exactly as it is written there, and nothing else."
    )
