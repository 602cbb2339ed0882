"""From the labels' log-probabilities to the answer to a question."""

from __future__ import annotations

import math
from collections.abc import Sequence

from openai_api.decisions.bodies import AnswerBody
from openai_api.decisions.question import AnyQuestion, ChoiceQuestion, PredicateQuestion


def shares(logprobs: Sequence[float]) -> list[float]:
    """How likely each is, given that it is one of them: a softmax."""
    highest = max(logprobs)
    weights = [math.exp(value - highest) for value in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def answer_body(question: AnyQuestion, probabilities: Sequence[float]) -> AnswerBody:
    """``probabilities`` are those of the question's labels, in their order. Of equal ones the first is chosen."""
    if isinstance(question, PredicateQuestion):
        return {"type": "predicate", "name": question.name, "probability": probabilities[0]}
    best = probabilities.index(max(probabilities))
    if isinstance(question, ChoiceQuestion):
        return {
            "type": "choice",
            "name": question.name,
            "choice": question.choices[best].value,
            "confidence": probabilities[best],
            "probabilities": [
                {"value": option.value, "probability": share}
                for option, share in zip(question.choices, probabilities, strict=True)
            ],
        }
    return {
        "type": "score",
        "name": question.name,
        "score": math.fsum(place * share for place, share in enumerate(probabilities)),
        "confidence": probabilities[best],
        "probabilities": [
            {"label": level.label, "value": place, "probability": share}
            for place, (level, share) in enumerate(zip(question.levels, probabilities, strict=True))
        ],
    }
