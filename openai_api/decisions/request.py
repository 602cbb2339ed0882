"""POST /v1/decisions: the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from openai_api.decisions.input import Evidence
from openai_api.decisions.question import AnyQuestion, ChoiceQuestion, Question, ScoreQuestion
from openai_api.errors import invalid
from openai_api.responses.schemas.items import AnyItem, FunctionCallItem, FunctionOutputItem, text_of
from openai_api.schemas.base import IGNORED, Harmless
from openai_api.schemas.steered import SteeredSchema

MAX_QUESTIONS = 400
MAX_SCORED = 4096  # labels of all questions: each is a sequence in the engine


class DecisionRequest(SteeredSchema):
    input: Evidence = Field(description="A text, or messages, calls of tools and their outputs.")
    questions: list[Question] = Field(min_length=1, max_length=MAX_QUESTIONS)

    prompt_cache_key: Annotated[str | None, Field(max_length=512), IGNORED] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, IGNORED] = None
    safety_identifier: Annotated[str | None, Field(max_length=512), IGNORED] = None

    REFUSED: ClassVar[Mapping[str, Harmless]] = {"stream": (False,)}
    REMEDIES: ClassVar[Mapping[str, str]] = {"stream": "The answers come all at once: leave it out."}
    TEXTS: ClassVar[tuple[str, ...]] = ("input", "questions")

    def check_together(self) -> None:
        super().check_together()
        if isinstance(self.input, list):
            _check_items(self.input)
        for place, question in enumerate(self.questions):
            _check_question(question, f"questions[{place}]")
        num_labels = sum(len(question.labels) for question in self.questions)
        if num_labels > MAX_SCORED:
            message = f"The questions have {num_labels} possible answers, {MAX_SCORED} at most. Ask fewer at once."
            raise invalid(message, param="questions")


def _check_question(question: AnyQuestion, param: str) -> None:
    if not text_of(question.instructions).strip():
        raise invalid("A question needs instructions that are not empty.", param=f"{param}.instructions")
    if isinstance(question, ChoiceQuestion):
        values = [(type(each.value), each.value) for each in question.choices]
        _check_labels(values, f"{param}.choices", "value")
    elif isinstance(question, ScoreQuestion):
        _check_labels([(str, each.label) for each in question.levels], f"{param}.levels", "label")


def _check_labels(values: Sequence[tuple[type, str | bool]], param: str, name: str) -> None:
    """Each once, and none that is blank."""
    seen: set[tuple[type, str | bool]] = set()
    for place, value in enumerate(values):
        where = f"{param}[{place}].{name}"
        if isinstance(value[1], str) and not value[1].strip():
            raise invalid("It must have characters that can be seen.", param=where)
        if value in seen:
            raise invalid(f"“{value[1]}” is there twice. Leave one out.", param=where)
        seen.add(value)


def _check_items(items: Sequence[AnyItem]) -> None:
    """Each output belongs to a call before it."""
    calls: set[str] = set()
    for place, item in enumerate(items):
        if isinstance(item, FunctionCallItem):
            calls.add(item.call_id)
        elif isinstance(item, FunctionOutputItem) and item.call_id not in calls:
            raise invalid("There is no call of this id before its output.", param=f"input[{place}].call_id")
