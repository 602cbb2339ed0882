"""Request and response bodies of POST /v1/decisions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from openai_api.http.errors import invalid
from openai_api.responses.schemas.bodies import ResponseUsageBody
from openai_api.responses.schemas.items import (
    MAX_ITEMS,
    AnyItem,
    Content,
    FunctionCallItem,
    FunctionOutputItem,
    InputItem,
    text_of,
)
from openai_api.schemas.base import IGNORED, Harmless, Part
from openai_api.schemas.bodies import MillmBody
from openai_api.schemas.generation import SteeredSchema

MAX_JSON_BYTES = 256 * 1024
MAX_JSON_LEVELS = 32
MAX_JSON_VALUES = 10_000
KINDS = ("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")


def _plain_item(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kind = value.get("type", "message" if "role" in value else None)
    if kind is not None and kind not in KINDS:
        raise PydanticCustomError(
            "unsupported_parameter",
            "has the unsupported type `{kind}`. Supported: {known}",
            {"kind": str(kind)[:50], "known": ", ".join(KINDS)},
        )
    if kind is None:
        raise PydanticCustomError("invalid_item", "must have a `type`: one of {known}", {"known": ", ".join(KINDS)})
    if kind == "custom_tool_call":
        return _function_call(value)
    plain = {**value, "type": kind.removeprefix("custom_tool_call_output") or "function_call_output"}
    for name in ("content", "output"):
        if name in plain:
            plain[name] = _plain_parts(plain[name])
    return plain


def _function_call(value: dict[str, Any]) -> dict[str, Any]:
    """Map a custom tool call, whose input is text, to a function call, which is what chat templates know."""
    if not isinstance(value.get("input"), str):
        raise PydanticCustomError("invalid_type", "must have `input`, a string")
    return {**value, "type": "function_call", "arguments": value["input"]}


def _plain_parts(value: Any) -> Any:
    return [_plain_part(part) for part in value] if isinstance(value, list) else value


def _plain_part(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "input_json":
        return part
    data = part.get("data")
    if not isinstance(data, dict) and not (isinstance(data, list) and all(isinstance(one, dict) for one in data)):
        raise PydanticCustomError("invalid_type", "must have `data`: an object or a list of objects")
    _check_json(data)
    return {"type": "input_text", "text": json.dumps(data, ensure_ascii=False, separators=(",", ":"))}


def _check_json(data: object) -> None:
    """Enforce OpenAI's limits on levels, values and bytes. The body size is bounded, so the recursion ends."""
    level, level_number, num_values = [data], 0, 0
    while level:
        level_number += 1
        children = [child for value in level for child in _children(value)]
        num_values += len(children)
        level = [child for child in children if isinstance(child, dict | list)]
        if level and level_number >= MAX_JSON_LEVELS:
            raise PydanticCustomError("invalid_value", f"must have at most {MAX_JSON_LEVELS} levels")
    if num_values > MAX_JSON_VALUES:
        raise PydanticCustomError("invalid_value", f"must have at most {MAX_JSON_VALUES} values")
    if len(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")) > MAX_JSON_BYTES:
        raise PydanticCustomError("invalid_value", f"must have at most {MAX_JSON_BYTES} bytes")


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


EvidenceItem = Annotated[InputItem, BeforeValidator(_plain_item)]
Evidence = Annotated[
    Annotated[str, Field(min_length=1), Tag("~string")]
    | Annotated[list[EvidenceItem], Field(min_length=1, max_length=MAX_ITEMS), Tag("~items")],
    Discriminator(lambda value: "~items" if isinstance(value, list) else "~string"),
]
Instructions = Annotated[Content, BeforeValidator(_plain_parts)]


MAX_LABELS = 255
MAX_LABEL = 512  # characters
MAX_NAME = 256
YES_NO = ("Yes", "No")

Name = Annotated[str, Field(max_length=MAX_NAME)]
Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL)]
Description = Annotated[str, Field(max_length=16_384)]


class PredicateQuestion(Part):
    """A statement about the input. The answer is the probability that it is true."""

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
    """An option. A string and a boolean with the same text are different options."""

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
    """A scale of levels, lowest first."""

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
        custom_error_message="must have a `type`: one of predicate, choice, score",
    ),
]


def written_labels(values: list[str | bool]) -> tuple[str, ...]:
    """Return each label as the model should write it.

    When one label is a prefix of another, all are written as JSON strings, where none is a prefix of another and the
    probabilities can be compared.
    """
    plain = tuple(json.dumps(value) if isinstance(value, bool) else value for value in values)
    if not _has_beginning_of_another(plain):
        return plain
    return tuple(json.dumps(value, ensure_ascii=False) for value in values)


def _has_beginning_of_another(texts: Iterable[str]) -> bool:
    """Return whether a label is a prefix of another. In sorted order a prefix directly precedes its extension."""
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


MAX_QUESTIONS = 400
MAX_SCORED = 4096  # labels of all questions; each is one sequence in the engine


class DecisionRequest(SteeredSchema):
    input: Evidence = Field(description="A text, or messages, tool calls and their outputs.")
    questions: list[Question] = Field(min_length=1, max_length=MAX_QUESTIONS)

    prompt_cache_key: Annotated[str | None, Field(max_length=512), IGNORED] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, IGNORED] = None
    safety_identifier: Annotated[str | None, Field(max_length=512), IGNORED] = None

    REFUSED: ClassVar[Mapping[str, Harmless]] = {"stream": (False,)}
    REMEDIES: ClassVar[Mapping[str, str]] = {"stream": "This endpoint does not stream."}
    TEXTS: ClassVar[tuple[str, ...]] = ("input", "questions")

    def check_together(self) -> None:
        super().check_together()
        if isinstance(self.input, list):
            _check_items(self.input)
        for place, question in enumerate(self.questions):
            _check_question(question, f"questions[{place}]")
        num_labels = sum(len(question.labels) for question in self.questions)
        if num_labels > MAX_SCORED:
            message = f"`questions` must have at most {MAX_SCORED} possible answers in total, got {num_labels}."
            raise invalid(message, param="questions")


def _check_question(question: AnyQuestion, param: str) -> None:
    if not text_of(question.instructions).strip():
        raise invalid(f"`{param}.instructions` must not be empty.", param=f"{param}.instructions")
    if isinstance(question, ChoiceQuestion):
        values = [(type(each.value), each.value) for each in question.choices]
        _check_labels(values, f"{param}.choices", "value")
    elif isinstance(question, ScoreQuestion):
        _check_labels([(str, each.label) for each in question.levels], f"{param}.levels", "label")


def _check_labels(values: Sequence[tuple[type, str | bool]], param: str, name: str) -> None:
    """Require labels that are unique and not blank."""
    seen: set[tuple[type, str | bool]] = set()
    for place, value in enumerate(values):
        where = f"{param}[{place}].{name}"
        if isinstance(value[1], str) and not value[1].strip():
            raise invalid(f"`{where}` must not be blank.", param=where)
        if value in seen:
            raise invalid(f"`{where}` must be unique, got `{value[1]}` twice.", param=where)
        seen.add(value)


def _check_items(items: Sequence[AnyItem]) -> None:
    """Require each output to belong to an earlier call."""
    calls: set[str] = set()
    for place, item in enumerate(items):
        if isinstance(item, FunctionCallItem):
            calls.add(item.call_id)
        elif isinstance(item, FunctionOutputItem) and item.call_id not in calls:
            where = f"input[{place}].call_id"
            raise invalid(f"`{where}` must be the id of an earlier tool call, got `{item.call_id}`.", param=where)


class PredicateBody(TypedDict):
    type: Literal["predicate"]
    name: str | None
    probability: float


class ChoiceProbabilityBody(TypedDict):
    value: str | bool
    probability: float


class ChoiceBody(TypedDict):
    """``confidence`` is the probability of the ``choice``."""

    type: Literal["choice"]
    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceProbabilityBody]


class ScoreProbabilityBody(TypedDict):
    """``value`` is the index of the level."""

    label: str
    value: int
    probability: float


class ScoreAnswerBody(TypedDict):
    """``score`` is the mean of the values, ``confidence`` the probability of the most likely level."""

    type: Literal["score"]
    name: str | None
    score: float
    confidence: float
    probabilities: list[ScoreProbabilityBody]


AnswerBody = PredicateBody | ChoiceBody | ScoreAnswerBody


class DecisionBody(TypedDict):
    model: str
    answers: list[AnswerBody]
    usage: ResponseUsageBody
    millm: NotRequired[MillmBody]
