"""Sweep: what a profile does to answers at several strengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inference.captures import Read
from jobs.running_job import RunningJob
from steering.evaluation.params import SweepParams, read_texts
from steering.evaluation.runner import AT_ONCE, AnswerComparison, EvaluatedVersion, EvaluationRunner, GeneratedAnswer
from steering.evaluation.text_measures import distinct, mean, perplexity, repeat_rate, word_rate

MAX_SAMPLES = 8


@dataclass(frozen=True)
class Sample:
    prompt: str
    text: str
    kl: float | None
    failure: str


@dataclass(frozen=True)
class Point:
    """One strength. ``factor`` None is no steering. Means are over tokens, where not said otherwise.

    ``kl``: nats per token between the steered and the unsteered next-token distributions on the steered answers.
    ``perplexity``: of the answers under the unsteered model. ``repeat``: mean share of repeated 4-grams of an answer.
    ``activation``: of the steered feature under the unsteered model. ``failures``: answers that came to nothing.
    """

    factor: float | None
    strengths: list[str]
    push: float | None
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


def read_wish(params: dict[str, Any]) -> SweepParams:
    return SweepParams(params["version"], read_texts(params["texts"]), tuple(params["factors"]), tuple(params["words"]))


def run_sweep(job: RunningJob) -> dict[str, Any]:
    """A point is kept as soon as it is there, so that a run after a crash goes on with the next."""
    wish = read_wish(job.params)
    subject = EvaluatedVersion.find(wish.version)
    bench, read = EvaluationRunner(subject.model), subject.read()
    points: list[dict[str, Any]] = list(job.checkpoint.get("points", []))
    factors: list[float | None] = [None, *wish.factors]
    for number, factor in enumerate(factors[len(points) :], len(points)):
        job.progress(number, len(factors), "no steering" if factor is None else f"{factor:g} × the strength")
        points.append(asdict(measure(job, bench, subject, wish, factor, read)))
        job.save_checkpoint({"points": points})
    return {
        "version": subject.published.label,
        "model": subject.model,
        "feature": subject.feature_name if read is not None else "",
        "words": list(wish.words),
        "texts": asdict(wish.texts),
        "points": points,
    }


def measure(
    job: RunningJob,
    bench: EvaluationRunner,
    subject: EvaluatedVersion,
    wish: SweepParams,
    factor: float | None,
    read: Read | None,
) -> Point:
    """All prompts at one strength, a few at once."""
    steered = None if factor is None else subject.at(factor)
    prompts, written, compared = wish.texts.prompts, list[GeneratedAnswer](), list[AnswerComparison]()
    for first in range(0, len(prompts), AT_ONCE):
        some = prompts[first : first + AT_ONCE]
        answers = bench.write(some, steered, wish.texts.sampling, first=first)
        job.check_cancelled()
        compared += bench.compare(list(zip(some, answers, strict=True)), steered, None, read)
        written += answers
        job.check_cancelled()
    return point_of(subject, wish, factor, written, compared)


def point_of(
    subject: EvaluatedVersion,
    wish: SweepParams,
    factor: float | None,
    written: Sequence[GeneratedAnswer],
    compared: Sequence[AnswerComparison],
) -> Point:
    activations = [value for one in compared for value in one.activations]
    texts = [one.text for one in written if one.token_ids]
    tokens = [one.token_ids for one in written]
    return Point(
        factor=factor,
        strengths=[] if factor is None else subject.strengths(factor),
        push=0.0 if factor is None else subject.push(factor),
        kl=finite(mean(value for one in compared for value in one.kl)),
        perplexity=finite(perplexity(value for one in compared for value in one.theirs)),
        repeat=mean(repeat_rate(ids) for ids in tokens),
        distinct_1=distinct(tokens, 1),
        distinct_2=distinct(tokens, 2),
        words=word_rate(texts, wish.words) if wish.words else None,
        activation=finite(mean(activations)),
        active=mean(float(value > 0) for value in activations),
        num_tokens=sum(len(ids) for ids in tokens),
        failures=sum(bool(one.failure or other.failure) for one, other in zip(written, compared, strict=True)),
        samples=[
            Sample(prompt, one.text, finite(mean(other.kl)), one.failure or other.failure)
            for prompt, one, other in zip(wish.texts.prompts[:MAX_SAMPLES], written, compared, strict=False)
        ],
    )


def finite(value: float | None) -> float | None:
    """None for what JSON cannot hold."""
    return value if value is not None and math.isfinite(value) else None
