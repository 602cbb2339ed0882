"""Create evaluations as jobs, store their reports, and apply a calibration to a draft."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from jobs.models import Job
from jobs.running_job import RunningJob
from jobs.services import enqueue_job
from steering.errors import EvaluationError
from steering.evaluation.params import CalibrationParams, ComparisonParams, EvaluationParams, SweepParams, to_json
from steering.models import Evaluation, ProfileVersion, SteeringProfile
from steering.services import replace_draft
from steering.spec.factor import with_factor
from steering.spec.parsing import parse_edits

PRIORITY = 0
_KINDS = {
    SweepParams: ("steering.sweep", "Sweep"),
    CalibrationParams: ("steering.calibrate", "Calibrate"),
    ComparisonParams: ("steering.compare", "Compare"),
}


def create_evaluation(*, params: EvaluationParams, owner: User | None = None) -> Job:
    """Enqueue an evaluation. Raises EvaluationError if a version does not exist or the two are of different models."""
    kind, verb = _KINDS[type(params)]
    version = _version(params.version)
    title = f"{verb} {version}"
    if isinstance(params, ComparisonParams):
        other = None if params.other is None else _version(params.other)
        if other is not None and other.profile.model_id != version.profile.model_id:
            raise EvaluationError(f"{version} and {other} belong to different models.")
        title = f"{verb} {version} with {other or 'no profile'}"
    return enqueue_job(kind=kind, params=to_json(params), owner=owner, title=title, priority=PRIORITY)


def keep_evaluation(kind: str, job: RunningJob, report: dict[str, Any]) -> dict[str, Any]:
    """Store the report of a job, once however often the job ran, and return the job's result."""
    values = {
        "kind": kind,
        "version_id": job.params["version"],
        "other_id": job.params.get("other"),
        "result": report,
        "created_by_id": job.owner_id,
    }
    evaluation, _ = Evaluation.objects.get_or_create(job_id=job.id, defaults=values)
    return {"evaluation": evaluation.pk}


@transaction.atomic
def use_calibration(*, evaluation: Evaluation) -> SteeringProfile:
    """Replace the profile's draft by the version with the proposed strengths."""
    if evaluation.kind != Evaluation.Kind.CALIBRATION:
        raise EvaluationError(f"{evaluation} is not a calibration, so it has no strengths to apply.")
    factor = evaluation.result["proposal"]["factor"]
    profile = evaluation.version.profile
    edits = [with_factor(edit, factor) for edit in parse_edits(evaluation.version.edits)]
    replace_draft(profile=profile, edits=edits)
    return profile


def _version(pk: int) -> ProfileVersion:
    row = ProfileVersion.objects.select_related("profile").filter(pk=pk).first()
    if row is None:
        raise EvaluationError(f"The profile version with the id {pk} does not exist.")
    return row
