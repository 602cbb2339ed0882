"""The arms of an evaluation: what answers the prompts, and the figures of its answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from inference.captures import CaptureSpec
from steering.evaluation.intervals import Estimate
from steering.evaluation.judging import Judge
from steering.evaluation.measures import MEASURES, AnswerRow, Columns, difference, figure, from_columns, to_columns
from steering.evaluation.params import Texts
from steering.evaluation.runner import (
    AT_ONCE,
    UNSTEERED,
    AnswerComparison,
    EvaluationRunner,
    GeneratedAnswer,
    Speaker,
)
from steering.evaluation.text_measures import count_words, distinct, repeat_rate

MAX_SAMPLES = 8
ArmKind = Literal["unsteered", "profile", "random_direction", "random_feature", "system_prompt"]


@dataclass(frozen=True)
class Arm:
    """What answers the prompts. ``factor`` multiplies the profile's strengths; None without steering."""

    kind: ArmKind
    name: str
    speaker: Speaker
    factor: float | None = None
    strengths: list[str] = field(default_factory=list)
    push: float | None = 0.0
    pushes: dict[str, float] = field(default_factory=dict)


UNSTEERED_ARM = Arm("unsteered", "no steering", UNSTEERED)


@dataclass(frozen=True)
class Sample:
    prompt: str
    text: str
    kl: float | None
    failure: str


@dataclass(frozen=True)
class Point:
    """The figures of an arm. Means are over tokens unless stated otherwise.

    ``kl``: KL(steered || base) on the steered answers. ``kl_base``: KL(base || steered) on the unsteered answers. Both
    in nats per token. ``perplexity``: of the answers under the unsteered model. ``repeat``: mean share of repeated
    4-grams of an answer. ``push``: relative size of the largest edit. ``pushes``: of all edits together, at each site.
    ``activation``: of the steered feature under the unsteered model. ``success``: share of the answers without a
    failure. ``intervals``: 95 % intervals by measure. ``differences``: value and interval of each measure minus that of
    the unsteered answers, paired by prompt. ``answers``: the rows of :class:`steering.evaluation.measures.AnswerRow`.
    """

    factor: float | None
    strengths: list[str]
    push: float | None
    pushes: dict[str, float]
    kl: float | None
    perplexity: float | None
    repeat: float | None
    distinct_1: float | None
    distinct_2: float | None
    words: float | None
    activation: float | None
    active: float | None
    num_tokens: int
    failures: int
    samples: list[Sample]
    kind: ArmKind = "profile"
    name: str = ""
    kl_base: float | None = None
    success: float | None = None
    intervals: dict[str, list[float | None]] = field(default_factory=dict)
    differences: dict[str, list[float | None]] = field(default_factory=dict)
    answers: Columns = field(default_factory=dict)

    @property
    def rows(self) -> list[AnswerRow]:
        return from_columns(self.answers)


def point_from_json(value: dict[str, Any]) -> Point:
    return Point(**{**value, "samples": [Sample(**sample) for sample in value["samples"]]})


@dataclass(frozen=True)
class Bench:
    """Measures arms on the same prompts and seeds.

    ``words`` are counted, ``read`` captures the steered feature, and ``judge`` scores the answers.
    """

    runner: EvaluationRunner
    texts: Texts
    check: Callable[[], None]  # raises an exception to stop
    words: tuple[str, ...] = ()
    read: CaptureSpec | None = None
    judge: Judge | None = None

    def generate(self, speaker: Speaker) -> list[GeneratedAnswer]:
        """Answer all prompts, a few at a time."""
        answers: list[GeneratedAnswer] = []
        for first, batch in self._batches():
            answers += self.runner.generate(batch, speaker, self.texts.sampling, first=first)
            self.check()
        return answers

    def compare(
        self,
        answers: Sequence[GeneratedAnswer],
        ours: Speaker,
        theirs: Speaker,
        read: CaptureSpec | None = None,
    ) -> list[AnswerComparison]:
        """Compute KL(ours || theirs) on answers to all prompts, a few at a time."""
        compared: list[AnswerComparison] = []
        for first, batch in self._batches():
            pairs = list(zip(batch, answers[first : first + len(batch)], strict=True))
            compared += self.runner.compare(pairs, ours, theirs, read)
            self.check()
        return compared

    def measure(self, arm: Arm, base: Sequence[GeneratedAnswer], base_rows: Sequence[AnswerRow]) -> Point:
        """Measure an arm. ``base`` are the unsteered answers, ``base_rows`` their rows; none for those themselves."""
        is_base = arm.speaker == UNSTEERED
        answers = list(base) if is_base else self.generate(arm.speaker)
        on_answers = self.compare(answers, arm.speaker, UNSTEERED, self.read)
        on_base = on_answers if is_base else self.compare(base, UNSTEERED, arm.speaker)
        rows = [
            self._row(number, *row) for number, row in enumerate(zip(answers, on_answers, base, on_base, strict=True))
        ]
        return self._point(arm, self._judged(rows, answers), base_rows, answers)

    def _judged(self, rows: list[AnswerRow], answers: Sequence[GeneratedAnswer]) -> list[AnswerRow]:
        if self.judge is None:
            return rows
        prompts = self.texts.numbered_prompts
        scores = self.judge.scores(
            [(prompt, one.text, bool(row.error)) for prompt, one, row in zip(prompts, answers, rows, strict=True)]
        )
        return [
            replace(
                row,
                concept=found.concept,
                instruction=found.instruction,
                fluency=found.fluency,
                judge_error=found.error,
            )
            for row, found in zip(rows, scores, strict=True)
        ]

    def base_row(self, number: int, base: GeneratedAnswer, on_base: AnswerComparison) -> AnswerRow:
        """Return the row of an unsteered answer on which an arm was compared."""
        sample, prompt = divmod(number, len(self.texts.prompts))
        return AnswerRow(
            prompt,
            sample,
            base_tokens=len(base.token_ids),
            kl_base=_sum(on_base.kl),
            error=base.failure or on_base.failure,
        )

    def _batches(self) -> list[tuple[int, tuple[str, ...]]]:
        prompts = self.texts.numbered_prompts
        return [(first, prompts[first : first + AT_ONCE]) for first in range(0, len(prompts), AT_ONCE)]

    def _row(
        self,
        number: int,
        answer: GeneratedAnswer,
        compared: AnswerComparison,
        base: GeneratedAnswer,
        on_base: AnswerComparison,
    ) -> AnswerRow:
        listed, num_words = count_words(answer.text, self.words) if self.words else (0, 0)
        return replace(
            self.base_row(number, base, on_base),
            tokens=len(answer.token_ids),
            kl=_sum(compared.kl),
            logprob=_sum(compared.theirs),
            repeat=repeat_rate(answer.token_ids),
            words=listed,
            num_words=num_words,
            activation=_sum(compared.activations),
            active=sum(value > 0 for value in compared.activations),
            captured=len(compared.activations),
            error=answer.failure or compared.failure or on_base.failure,
        )

    def _point(
        self, arm: Arm, rows: list[AnswerRow], base: Sequence[AnswerRow], answers: Sequence[GeneratedAnswer]
    ) -> Point:
        tokens = [answer.token_ids for answer in answers]
        estimates = figures(rows)
        return Point(
            factor=arm.factor,
            strengths=arm.strengths,
            push=arm.push,
            pushes=arm.pushes,
            kl=_value(estimates["kl"]),
            perplexity=_value(estimates["perplexity"]),
            repeat=_value(estimates["repeat"]),
            distinct_1=distinct(tokens, 1),
            distinct_2=distinct(tokens, 2),
            words=_value(estimates["words"]),
            activation=_value(estimates["activation"]),
            active=_value(estimates["active"]),
            num_tokens=sum(len(ids) for ids in tokens),
            failures=sum(bool(row.error) for row in rows),
            samples=[
                Sample(prompt, answer.text, _ratio(row.kl, row.tokens), row.error)
                for prompt, answer, row in zip(self.texts.prompts[:MAX_SAMPLES], answers, rows, strict=False)
            ],
            kind=arm.kind,
            name=arm.name,
            kl_base=_value(estimates["kl_base"]),
            success=_value(estimates["success"]),
            intervals=intervals_of(estimates),
            differences=differences_of(rows, base),
            answers=to_columns(rows),
        )


def figures(rows: Sequence[AnswerRow]) -> dict[str, Estimate | None]:
    """Return all measures of the answers by name."""
    return {name: figure(name, rows) for name in MEASURES}


def intervals_of(estimates: dict[str, Estimate | None]) -> dict[str, list[float | None]]:
    return {name: [found.low, found.high] for name, found in estimates.items() if found is not None}


def differences_of(rows: Sequence[AnswerRow], base: Sequence[AnswerRow]) -> dict[str, list[float | None]]:
    """Return value, low and high of each measure minus that of ``base``; empty without ``base``."""
    found = {name: difference(name, rows, base) for name in MEASURES} if base else {}
    return {name: value.to_json() for name, value in found.items() if value is not None}


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def _ratio(total: float | None, count: int) -> float | None:
    return None if total is None or not count else total / count


def _sum(values: Sequence[float]) -> float | None:
    """Return the sum; None without values, and if it is not finite."""
    total = math.fsum(values) if values and all(map(math.isfinite, values)) else None
    return total if total is not None and math.isfinite(total) else None
