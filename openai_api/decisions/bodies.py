"""POST /v1/decisions: the answer. OpenAI's refusals do not occur: a model's probabilities are always there."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from openai_api.responses.schemas.bodies import ResponseUsageBody
from openai_api.schemas.bodies import MillmBody


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
    """``value`` is the level's place, from 0 on."""

    label: str
    value: int
    probability: float


class ScoreAnswerBody(TypedDict):
    """``score`` is the mean of the values, ``confidence`` the probability of the likeliest level."""

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
