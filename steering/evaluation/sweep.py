"""The sweep job: measure what a profile does to answers at several strengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inference.captures import CaptureSpec
from jobs.running_job import RunningJob
from steering.evaluation.params import SweepParams, read_texts
from steering.evaluation.runner import AT_ONCE, AnswerComparison, EvaluatedVersion, EvaluationRunner, GeneratedAnswer
from steering.evaluation.services import keep_evaluation
from steering.evaluation.text_measures import distinct, mean, perplexity, repeat_rate, word_rate
from steering.models import Evaluation

MAX_SAMPLES = 8


@dataclass(frozen=True)
class Sample:
    prompt: str
    text: str
    kl: float | None
    failure: str


@dataclass(frozen=True)
class Point:
    """The measurements at one strength; ``factor`` None is no steering. Means are over tokens unless stated otherwise.

    ``kl``: nats per token between the steered and the unsteered next-token distributions on the steered answers.
    ``perplexity``: of the answers under the unsteered model. ``repeat``: mean share of repeated 4-grams of an answer.
    ``push``: relative size of the largest edit. ``pushes``: of all edits together, at each site.
    ``activation``: of the steered feature under the unsteered model. ``failures``: answers that failed.
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


def read_params(params: dict[str, Any]) -> SweepParams:
    return SweepParams(params["version"], read_texts(params["texts"]), tuple(params["factors"]), tuple(params["words"]))


def run_sweep(job: RunningJob) -> dict[str, Any]:
    """Run the job "steering.sweep" and store its report."""
    return keep_evaluation(Evaluation.Kind.SWEEP, job, sweep(job))


def sweep(job: RunningJob) -> dict[str, Any]:
    """Return the report. Each point is checkpointed, so that a run after a crash continues with the next one."""
    params = read_params(job.params)
    subject = EvaluatedVersion.find(params.version)
    runner, read = EvaluationRunner(subject.model), subject.read()
    points: list[dict[str, Any]] = list(job.checkpoint.get("points", []))
    factors: list[float | None] = [None, *params.factors]
    for number, factor in enumerate(factors[len(points) :], len(points)):
        job.progress(number, len(factors), "no steering" if factor is None else f"{factor:g} × the strength")
        points.append(asdict(measure(job, runner, subject, params, factor, read)))
        job.save_checkpoint({"points": points})
    return {
        "version": subject.published.label,
        "model": subject.model,
        "feature": subject.feature_name if read is not None else "",
        "words": list(params.words),
        "texts": asdict(params.texts),
        "points": points,
    }


def measure(
    job: RunningJob,
    runner: EvaluationRunner,
    subject: EvaluatedVersion,
    params: SweepParams,
    factor: float | None,
    read: CaptureSpec | None,
) -> Point:
    """Answer all prompts at one strength, a few at a time."""
    steered = None if factor is None else subject.at(factor)
    prompts, answers, comparisons = params.texts.prompts, list[GeneratedAnswer](), list[AnswerComparison]()
    for first in range(0, len(prompts), AT_ONCE):
        batch = prompts[first : first + AT_ONCE]
        generated = runner.generate(batch, steered, params.texts.sampling, first=first)
        job.check_cancelled()
        comparisons += runner.compare(list(zip(batch, generated, strict=True)), steered, None, read)
        answers += generated
        job.check_cancelled()
    return point_of(subject, params, factor, answers, comparisons)


def point_of(
    subject: EvaluatedVersion,
    params: SweepParams,
    factor: float | None,
    answers: Sequence[GeneratedAnswer],
    comparisons: Sequence[AnswerComparison],
) -> Point:
    activations = [value for comparison in comparisons for value in comparison.activations]
    texts = [answer.text for answer in answers if answer.token_ids]
    tokens = [answer.token_ids for answer in answers]
    pairs = list(zip(answers, comparisons, strict=True))
    return Point(
        factor=factor,
        strengths=[] if factor is None else subject.strengths(factor),
        push=0.0 if factor is None else subject.push(factor),
        pushes={} if factor is None else subject.pushes(factor),
        kl=finite(mean(value for comparison in comparisons for value in comparison.kl)),
        perplexity=finite(perplexity(value for comparison in comparisons for value in comparison.theirs)),
        repeat=mean(repeat_rate(ids) for ids in tokens),
        distinct_1=distinct(tokens, 1),
        distinct_2=distinct(tokens, 2),
        words=word_rate(texts, params.words) if params.words else None,
        activation=finite(mean(activations)),
        active=mean(float(value > 0) for value in activations),
        num_tokens=sum(len(ids) for ids in tokens),
        failures=sum(bool(answer.failure or comparison.failure) for answer, comparison in pairs),
        samples=[
            Sample(prompt, answer.text, finite(mean(comparison.kl)), answer.failure or comparison.failure)
            for prompt, (answer, comparison) in zip(params.texts.prompts[:MAX_SAMPLES], pairs, strict=False)
        ],
    )


def finite(value: float | None) -> float | None:
    """Return the value, or None if JSON cannot represent it."""
    return value if value is not None and math.isfinite(value) else None
