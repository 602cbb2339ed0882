"""Judge answers as AxBench does: concept, instruction and fluency, 0 to 2 each.

After Wu et al., AxBench: Steering LLMs? Even Simple Baselines Outperform Sparse Autoencoders (2025), with prompts of
our own. A model of this server judges by the most probable of the labels 0, 1 and 2, as ``/v1/decisions`` computes
them; an external endpoint by the digit that it writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from django.conf import settings

from core.chat_endpoint import ChatEndpoint, ChatEndpointError
from inference.models import LanguageModel
from steering.errors import EvaluationError
from steering.evaluation.params import ENDPOINT, JudgeParams
from steering.evaluation.runner import UNSTEERED, EvaluationRunner

LABELS = ("0", "1", "2")
AT_ONCE = 4  # requests to an endpoint
MAX_JUDGE_TOKENS = 8
_DIGIT = re.compile(r"\b[012]\b")

CONCEPT = """Does the text show the concept below?

Concept: {concept}

Text:
{answer}

0 - it does not show the concept at all
1 - it shows a trace of it, or shows it only in a forced way
2 - it clearly shows the concept throughout

Reply with a single digit: 0, 1 or 2."""
INSTRUCTION = """A user sent the request below. Does the text answer it? Ignore its style and any unusual topic.

Request: {prompt}

Text:
{answer}

0 - it has nothing to do with the request
1 - it is related to the request but does not do what was asked
2 - it does what was asked

Reply with a single digit: 0, 1 or 2."""
FLUENCY = """Is the text well-formed language? Ignore what it is about, and that it may end in the middle of a sentence.

Text:
{answer}

0 - it is broken: loops, fragments or nonsense
1 - it can be understood but reads unnaturally
2 - it reads like the text of a careful writer

Reply with a single digit: 0, 1 or 2."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A judge's scores of one answer; None where ``error`` says why the judge gave none."""

    concept: float | None
    instruction: float | None
    fluency: float | None
    error: str = ""


FAILED_ANSWER = Scores(0.0, 0.0, 0.0)
"""An answer that failed shows no concept, follows no instruction and is not fluent."""


class Rater(Protocol):
    def rate(self, question: str) -> int:
        """Return 0, 1 or 2. Raise ChatEndpointError or EvaluationError."""


@dataclass(frozen=True)
class LocalRater:
    """Rates by the most probable label; loads the model if necessary."""

    runner: EvaluationRunner

    def rate(self, question: str) -> int:
        sums = [sum(scores) for scores in self.runner.score(question, LABELS, UNSTEERED, at_answer=True)]
        return sums.index(max(sums))


@dataclass(frozen=True)
class EndpointRater:
    """Rates by the first digit that the endpoint writes."""

    endpoint: ChatEndpoint

    def rate(self, question: str) -> int:
        text = self.endpoint.complete([{"role": "user", "content": question}], max_tokens=MAX_JUDGE_TOKENS)
        if (found := _DIGIT.search(text)) is None:
            raise ChatEndpointError(f"{self.endpoint.host} gave no rating: {text[:80]!r}.")
        return int(found.group())


@dataclass(frozen=True)
class Judge:
    """Scores answers for one concept. ``check`` is called between answers and raises an exception to stop."""

    rater: Rater
    concept: str
    check: Callable[[], None]
    at_once: int = 1

    def scores(self, answers: Sequence[tuple[str, str, bool]]) -> list[Scores]:
        """Score answers, each a prompt, a text and whether the answer failed. Raise EvaluationError if none can be."""
        found: list[Scores] = []
        if self.at_once == 1:  # in this thread, whose database connection the engine's registry uses
            for answer in answers:
                found.append(self._score(answer))
                self.check()
        else:
            with ThreadPoolExecutor(self.at_once) as pool:
                for first in range(0, len(answers), self.at_once):
                    found += pool.map(self._score, answers[first : first + self.at_once])
                    self.check()
        errors = [one.error for one in found if one.error]
        if errors and len(errors) == len(found):
            raise EvaluationError(f"The judge rated none of {len(found)} answers: {errors[0]}")
        return found

    def _score(self, answer: tuple[str, str, bool]) -> Scores:
        prompt, text, is_failed = answer
        if is_failed or not text.strip():
            return FAILED_ANSWER
        templates = (CONCEPT, INSTRUCTION, FLUENCY)
        questions = [_filled(one, concept=self.concept, prompt=prompt, answer=text) for one in templates]
        try:
            concept, instruction, fluency = (self.rater.rate(question) for question in questions)
        except ChatEndpointError as error:
            if error.is_final:
                raise EvaluationError(f"The judge cannot be used: {error.message}") from error
            return Scores(None, None, None, error.message)
        return Scores(concept, instruction, fluency)


def _filled(template: str, **values: str) -> str:
    """Fill in the fields. The values are inserted as they are, braces included."""
    return re.sub(r"\{(\w+)\}", lambda match: values[match.group(1)], template)


def make_judge(params: JudgeParams, check: Callable[[], None]) -> Judge:
    """Return the judge that the parameters name. Raise EvaluationError for an endpoint that is not set up."""
    if params.model != ENDPOINT:
        return Judge(LocalRater(EvaluationRunner(params.model)), params.concept, check)
    return Judge(EndpointRater(judge_endpoint()), params.concept, check, AT_ONCE)


def check_judge(params: JudgeParams) -> None:
    """Raise EvaluationError if there is no such judge."""
    if params.model == ENDPOINT:
        judge_endpoint()
        return
    row = LanguageModel.objects.filter(name=params.model).first()
    if row is None or row.kind != LanguageModel.Kind.GENERATION:
        raise EvaluationError(f"The judge {params.model!r} is no generation model of this server, nor {ENDPOINT!r}.")


def judge_endpoint() -> ChatEndpoint:
    if not settings.MILLM_JUDGE_BASE_URL or not settings.MILLM_JUDGE_MODEL:
        raise EvaluationError("Set MILLM_JUDGE_BASE_URL and MILLM_JUDGE_MODEL to judge by an external endpoint.")
    return ChatEndpoint(settings.MILLM_JUDGE_BASE_URL, settings.MILLM_JUDGE_MODEL, settings.MILLM_JUDGE_API_KEY)
