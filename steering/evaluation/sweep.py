"""The sweep job: measure what a profile does to answers at several strengths, beside controls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from jobs.running_job import RunningJob
from steering.evaluation.arms import UNSTEERED_ARM, Arm, Bench, Point, point_from_json
from steering.evaluation.controls import control_arms
from steering.evaluation.headline import headline_kl
from steering.evaluation.judging import make_judge
from steering.evaluation.measures import AnswerRow
from steering.evaluation.off_target import check_off_target
from steering.evaluation.params import Controls, JudgeParams, SweepParams, read_texts
from steering.evaluation.recommendation import recommend
from steering.evaluation.runner import UNSTEERED, EvaluatedVersion, EvaluationRunner, GeneratedAnswer, Speaker
from steering.evaluation.services import keep_evaluation
from steering.models import Evaluation


def read_params(params: dict[str, Any]) -> SweepParams:
    controls = Controls(**params.get("controls", {}))
    texts = read_texts(params["texts"])
    judge = None if params.get("judge") is None else JudgeParams(**params["judge"])
    return SweepParams(params["version"], texts, tuple(params["factors"]), tuple(params["words"]), controls, judge)


def run_sweep(job: RunningJob) -> dict[str, Any]:
    """Run the job "steering.sweep" and store its report."""
    return keep_evaluation(Evaluation.Kind.SWEEP, job, sweep(job))


def sweep(job: RunningJob) -> dict[str, Any]:
    """Return the report. Each arm is checkpointed, so that a run after a crash continues with the next one."""
    params = read_params(job.params)
    subject = EvaluatedVersion.find(params.version)
    run = _Sweep(job, params, subject)
    points = run.measure("points", strength_arms(subject, params))
    found = recommend(points, params)
    controls = run.measure("controls", control_arms(subject, params.controls, found.factor, params.texts.seed))
    if left_out := params.controls.num_arms - len(controls):
        job.log(
            f"{left_out} of {params.controls.num_arms} controls were left out: the relative size of the profile's "
            "edits is unknown, or no SAE with measured features is registered at their site."
        )
    off_target = run.check_off_target(found.factor) if params.controls.off_target else None
    return {
        "version": subject.published.label,
        "model": subject.model,
        "feature": subject.feature_name if run.bench.read is not None else "",
        "words": list(params.words),
        "texts": asdict(params.texts),
        "points": [asdict(point) for point in points],
        "controls": [asdict(point) for point in controls],
        "control_settings": asdict(params.controls),
        "judge": None if params.judge is None else asdict(params.judge),
        "recommendation": asdict(found),
        "off_target": off_target,
        "headline": headline_kl(run.bench.runner, subject, job.check_cancelled),
    }


def strength_arms(subject: EvaluatedVersion, params: SweepParams) -> Iterator[Arm]:
    """Yield the unsteered model, and the profile at each strength."""
    yield UNSTEERED_ARM
    for factor in params.factors:
        yield Arm(
            "profile",
            f"{factor:g} × the strength",
            Speaker(subject.at(factor)),
            factor,
            subject.strengths(factor),
            subject.push(factor),
            subject.pushes(factor),
        )


class _Sweep:
    """Measures arms in order, and checkpoints each. The unsteered answers are generated once, and again after a crash:
    they are the same, because they are seeded.
    """

    def __init__(self, job: RunningJob, params: SweepParams, subject: EvaluatedVersion) -> None:
        self._job = job
        self._subject = subject
        self._total = 1 + len(params.factors) + params.controls.num_arms + params.controls.off_target
        self._done = 0
        runner = EvaluationRunner(subject.model)
        judge = None if params.judge is None else make_judge(params.judge, job.check_cancelled)
        self.bench = Bench(runner, params.texts, job.check_cancelled, params.words, subject.read(), judge)
        self._base: list[GeneratedAnswer] | None = None
        self._base_rows: list[AnswerRow] = []

    def measure(self, name: str, arms: Iterator[Arm]) -> list[Point]:
        known: list[dict[str, Any]] = list(self._job.checkpoint.get(name, []))
        points = [point_from_json(value) for value in known]
        for number, arm in enumerate(arms):
            if number == len(points):
                self._job.progress(self._done, self._total, arm.name)
                points.append(self._measure(arm))
                self._job.save_checkpoint({**self._job.checkpoint, name: [asdict(point) for point in points]})
            self._done += 1
            if not number and name == "points":
                self._base_rows = points[0].rows
        return points

    def check_off_target(self, factor: float) -> dict[str, Any]:
        self._job.progress(self._total - 1, self._total, "multiple-choice questions")
        speaker = Speaker(self._subject.at(factor))
        return check_off_target(self.bench.runner, speaker, self._job.check_cancelled)

    def _measure(self, arm: Arm) -> Point:
        if self._base is None:
            self._base = self.bench.generate(UNSTEERED)
        return self.bench.measure(arm, self._base, self._base_rows)
