"""The calibration job: find the strength at which a profile moves next-token distributions by a target amount."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jobs.running_job import RunningJob
from steering.errors import EvaluationError
from steering.evaluation.arms import Bench
from steering.evaluation.headline import headline_kl
from steering.evaluation.measures import Columns, figure, to_columns
from steering.evaluation.params import CalibrationParams, read_texts
from steering.evaluation.runner import (
    AT_ONCE,
    UNSTEERED,
    EvaluatedVersion,
    EvaluationRunner,
    GeneratedAnswer,
    Speaker,
    TextPiece,
)
from steering.evaluation.services import keep_evaluation
from steering.models import Evaluation
from steering.spec.factor import has_strength, largest_factor

TOLERANCE = 0.05  # of the target
MAX_STEPS = 16
MIN_FACTOR = 1e-4


@dataclass(frozen=True)
class CurvePoint:
    """KL(base || steered) on the unsteered answers at one factor, in nats per token, with its 95 % interval.

    ``kl`` None means that the steered model became unstable. ``answers`` are the rows of
    :class:`steering.evaluation.measures.AnswerRow`.
    """

    factor: float
    push: float | None
    kl: float | None
    pushes: dict[str, float] = field(default_factory=dict)
    interval: list[float | None] = field(default_factory=list)
    failures: int = 0
    answers: Columns = field(default_factory=dict)


@dataclass(frozen=True)
class Search:
    """The result of a search for a factor.

    If ``is_met``, ``factor`` meets the target. Otherwise it is the largest one below the cap (``is_capped``), or the
    closest one that was tried.
    """

    factor: float
    kl: float | None
    is_met: bool
    is_capped: bool


def read_params(params: dict[str, Any]) -> CalibrationParams:
    return CalibrationParams(params["version"], read_texts(params["texts"]), params["target"], params["push_cap"])


def run_calibration(job: RunningJob) -> dict[str, Any]:
    """Run the job "steering.calibrate" and store its report."""
    return keep_evaluation(Evaluation.Kind.CALIBRATION, job, calibrate(job))


def calibrate(job: RunningJob) -> dict[str, Any]:
    """Return the report. The unsteered model writes the texts once, so that all strengths use the same tokens."""
    params = read_params(job.params)
    subject = EvaluatedVersion.find(params.version)
    if not has_strength(subject.edits):
        raise EvaluationError(f"{subject.published.label} has no edit with a strength, so it cannot be calibrated.")
    limit = largest_factor(subject.edits, params.push_cap)
    if limit < MIN_FACTOR:
        raise EvaluationError(
            f"Every strength exceeds the cap of {params.push_cap:g} on the relative size; raise the cap."
        )
    runner = EvaluationRunner(subject.model)
    bench = Bench(runner, params.texts, job.check_cancelled)
    texts = _texts(job, runner, params)
    curve = [CurvePoint(**point) for point in job.checkpoint.get("curve", [])]
    known = {point.factor: point.kl for point in curve}

    def kl_at(factor: float) -> float | None:
        if factor not in known:
            job.progress(len(curve), max(MAX_STEPS, len(curve) + 1), f"{factor:.4g} × the strength")
            point = _measure(bench, subject, texts, factor)
            known[factor] = point.kl
            curve.append(point)
            job.save_checkpoint({**job.checkpoint, "curve": [asdict(point) for point in curve]})
        return known[factor]

    found = search(kl_at, params.target, limit)
    return {
        "version": subject.published.label,
        "model": subject.model,
        "target": params.target,
        "push_cap": params.push_cap,
        "limit": limit,
        "texts": asdict(params.texts),
        "measure": "kl_base",
        "headline": headline_kl(runner, subject, job.check_cancelled),
        "num_tokens": sum(len(answer.token_ids) for answer in texts),
        "curve": [asdict(point) for point in sorted(curve, key=lambda point: point.factor)],
        "proposal": {**asdict(found), "push": subject.push(found.factor), "strengths": subject.strengths(found.factor)},
    }


def search(kl_at: Callable[[float], float | None], target: float, limit: float) -> Search:
    """Bisect for ``kl_at(factor) = target`` in ``0 < factor <= limit``; a ``kl_at`` of None counts as too large."""
    low, high = 0.0, min(1.0, limit)
    while (kl := kl_at(high)) is not None and kl < target and high < limit:
        low, high = high, min(2 * high, limit)
    if kl is not None and kl < target * (1 - TOLERANCE):
        return Search(high, kl, is_met=False, is_capped=True)
    best = (high, kl)
    for _ in range(MAX_STEPS):
        if best[1] is not None and abs(best[1] - target) <= TOLERANCE * target:
            return Search(*best, is_met=True, is_capped=False)
        middle = (low * high) ** 0.5 if low else high / 8  # a divergence grows like a power of the strength
        kl = kl_at(middle)
        if kl is not None and (best[1] is None or abs(kl - target) < abs(best[1] - target)):
            best = (middle, kl)
        low, high = (middle, high) if kl is not None and kl < target else (low, middle)
    is_met = best[1] is not None and abs(best[1] - target) <= TOLERANCE * target
    return Search(*best, is_met=is_met, is_capped=False)


def _texts(job: RunningJob, runner: EvaluationRunner, params: CalibrationParams) -> list[GeneratedAnswer]:
    """Generate the unsteered answers once, and checkpoint them for a run after a crash."""
    prompts = params.texts.numbered_prompts
    kept: list[dict[str, Any]] = list(job.checkpoint.get("texts", []))
    for first in range(len(kept), len(prompts), AT_ONCE):
        job.progress(0, MAX_STEPS, f"unsteered answers, {first} of {len(prompts)}")
        some = runner.generate(prompts[first : first + AT_ONCE], UNSTEERED, params.texts.sampling, first=first)
        kept += [asdict(answer) for answer in some]
        job.save_checkpoint({**job.checkpoint, "texts": kept})
    texts = [_answer_of(value) for value in kept]
    if not any(text.token_ids for text in texts):
        raise EvaluationError("The unsteered model gave no answer to any of the prompts; choose other prompts.")
    return texts


def _answer_of(value: dict[str, Any]) -> GeneratedAnswer:
    pieces = tuple(TextPiece(**piece) for piece in value["pieces"])
    return GeneratedAnswer(tuple(value["token_ids"]), pieces, value["finish_reason"], value["failure"])


def _measure(bench: Bench, subject: EvaluatedVersion, texts: Sequence[GeneratedAnswer], factor: float) -> CurvePoint:
    """Measure all texts at one strength. A single failed comparison makes the point unusable."""
    compared = bench.compare(texts, UNSTEERED, Speaker(subject.at(factor)))
    rows = [bench.base_row(number, *pair) for number, pair in enumerate(zip(texts, compared, strict=True))]
    found, failures = figure("kl_base", rows), sum(bool(row.error) for row in rows)
    return CurvePoint(
        factor,
        subject.push(factor),
        None if failures or found is None else found.value,
        subject.pushes(factor),
        [] if found is None else [found.low, found.high],
        failures,
        to_columns(rows),
    )
