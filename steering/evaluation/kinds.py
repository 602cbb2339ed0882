"""The kinds of jobs that evaluations are, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jobs.kinds import JobKind, register

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

    from jobs.running_job import RunningJob

SWEEP = "steering.sweep"
CALIBRATE = "steering.calibrate"
COMPARE = "steering.compare"


def register_kinds() -> None:
    """What runs is imported when it runs: it loads torch."""
    register(JobKind(SWEEP, "Sweep of strengths", _sweep, show=_show))
    register(JobKind(CALIBRATE, "Calibration", _calibrate, show=_show))
    register(JobKind(COMPARE, "Comparison", _compare, show=_show))


def _show(result: Mapping[str, Any]) -> SafeString:
    from django.urls import reverse
    from django.utils.html import format_html

    url = reverse("admin:steering_evaluation_change", args=[result["evaluation"]])
    return format_html('<p><a class="button" href="{}">Open the report</a></p>', url)


def _sweep(job: RunningJob) -> dict[str, Any]:
    from steering.evaluation.sweep import run_sweep

    return _kept(job, "sweep", run_sweep)


def _calibrate(job: RunningJob) -> dict[str, Any]:
    from steering.evaluation.calibration import run_calibration

    return _kept(job, "calibration", run_calibration)


def _compare(job: RunningJob) -> dict[str, Any]:
    from steering.evaluation.comparison import run_comparison

    return _kept(job, "comparison", run_comparison)


def _kept(job: RunningJob, kind: str, run: Callable[[RunningJob], dict[str, Any]]) -> dict[str, Any]:
    from steering.evaluation.services import keep_evaluation

    result = run(job)
    evaluation = keep_evaluation(
        kind=kind,
        job_id=job.id,
        owner_id=job.owner_id,
        version_id=job.params["version"],
        other_id=job.params.get("other"),
        result=result,
    )
    return {"evaluation": evaluation.pk}
