"""The off-target check: multiple-choice questions with and without a profile, scored by the options' probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from steering.corpora.prompt_sets import MultipleChoiceQuestion, multiple_choice_questions
from steering.evaluation.intervals import Estimate, PromptSums, estimate, estimate_difference
from steering.evaluation.runner import UNSTEERED, EvaluationRunner, Speaker


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """The answer to a question: the place of the ``chosen`` option, None if ``error`` says why it was not scored.

    ``margin`` is the mean log-probability per token of the right option minus that of the best wrong one, in nats.
    """

    domain: str
    is_right: bool
    chosen: int | None = None
    margin: float | None = None
    error: str = ""


def check_off_target(runner: EvaluationRunner, speaker: Speaker, check: Callable[[], None]) -> dict[str, Any]:
    """Return accuracy without and with the speaker's steering, and their difference paired by question.

    ``check`` is called between questions and raises an exception to stop.
    """
    questions = multiple_choice_questions()
    without = [answer(runner, question, UNSTEERED, check) for question in questions]
    with_it = [answer(runner, question, speaker, check) for question in questions]
    found = (_accuracy(without), _accuracy(with_it))
    return {
        "num_questions": len(questions),
        "without": _json(estimate(found[0])),
        "with": _json(estimate(found[1])),
        "difference": _json(estimate_difference(found[1], found[0])),
        "failures": sum(bool(row.error) for row in with_it),
        "rows": [
            {
                "question": question.question,
                "domain": question.domain,
                "answer": question.options[question.answer],
                "without": _option(question, before),
                "with": _option(question, after),
                "margin_without": before.margin,
                "margin_with": after.margin,
                "error": after.error,
            }
            for question, before, after in zip(questions, without, with_it, strict=True)
        ],
    }


def answer(
    runner: EvaluationRunner, question: MultipleChoiceQuestion, speaker: Speaker, check: Callable[[], None]
) -> ChoiceRow:
    """Choose the option whose tokens are the likeliest on average, as an answer to the question.

    The options are not listed in the prompt, so the model continues with the words of an option rather than a letter.
    A question that cannot be scored counts as wrong.
    """
    check()
    scores = runner.score(question.question, question.options, speaker)
    if not all(scores):
        return ChoiceRow(question.domain, is_right=False, error="The steered model became unstable.")
    means = [fmean(values) for values in scores]
    best_wrong = max(value for place, value in enumerate(means) if place != question.answer)
    chosen = means.index(max(means))
    return ChoiceRow(question.domain, chosen == question.answer, chosen, means[question.answer] - best_wrong)


def _accuracy(rows: Sequence[ChoiceRow]) -> PromptSums:
    return PromptSums.over(len(rows), [(number, float(row.is_right), 1.0) for number, row in enumerate(rows)])


def _option(question: MultipleChoiceQuestion, row: ChoiceRow) -> str:
    return "" if row.chosen is None else question.options[row.chosen]


def _json(found: Estimate | None) -> list[float | None] | None:
    return None if found is None else found.to_json()
