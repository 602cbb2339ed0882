"""Create evaluations as jobs, store their reports, and apply a calibration to a draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from inference.models import LanguageModel
from jobs.models import Job
from jobs.running_job import RunningJob
from jobs.services import enqueue_job
from steering.errors import EvaluationError
from steering.evaluation.judging import check_judge
from steering.evaluation.params import (
    CalibrationParams,
    ComparisonParams,
    EvaluationParams,
    HeadlineParams,
    SweepParams,
    to_json,
)
from steering.evaluation.runner import UnpublishedEdits
from steering.models import Evaluation, ProfileVersion, SteeringProfile
from steering.profiles.draft_checks import usable_edits
from steering.profiles.drafts import draft_rows, rows_of
from steering.profiles.inline_edits import INLINE
from steering.profiles.snapshot import DRAFT
from steering.services import replace_draft
from steering.spec.edit import EditSpec
from steering.spec.factor import with_factor
from steering.spec.parsing import parse_edits
from steering.spec.rendering import edits_to_json

PRIORITY = 0
_KINDS = {
    SweepParams: ("steering.sweep", "Sweep"),
    CalibrationParams: ("steering.calibrate", "Calibrate"),
    ComparisonParams: ("steering.compare", "Compare"),
    HeadlineParams: ("steering.headline", "Measure the headline KL of"),
}


def create_evaluation(*, params: EvaluationParams, owner: User | None = None) -> Job:
    """Enqueue an evaluation. Raises EvaluationError if a version does not exist or the two are of different models."""
    kind, verb = _KINDS[type(params)]
    model, label = _subject(params.version)
    title = f"{verb} {label}"
    if isinstance(params, ComparisonParams):
        other = None if params.other is None else _version(params.other)
        if other is not None and other.profile.model_id != model:
            raise EvaluationError(f"{label} and {other} belong to different models.")
        title = f"{verb} {label} with {other or 'no profile'}"
    if isinstance(params, SweepParams) and params.judge is not None:
        check_judge(params.judge)
    return enqueue_job(kind=kind, params=to_json(params), owner=owner, title=title, priority=PRIORITY)


def draft_target(*, profile: SteeringProfile) -> UnpublishedEdits:
    """Return the draft as it is now. Raises InvalidProfileError if it cannot steer."""
    edits = usable_edits(profile, draft_rows(profile))
    return UnpublishedEdits(profile.model_id, f"{profile.name}{DRAFT}", edits_to_json(edits), profile.pk)


def inline_target(*, model: LanguageModel, edits: Sequence[EditSpec]) -> UnpublishedEdits:
    """Return the edits of a request. Raises InvalidProfileError if they cannot steer the model."""
    unsaved = SteeringProfile(name=INLINE, model=model)
    checked = usable_edits(unsaved, rows_of(unsaved, edits))
    return UnpublishedEdits(model.pk, INLINE, edits_to_json(checked))


def keep_evaluation(kind: str, job: RunningJob, report: dict[str, Any]) -> dict[str, Any]:
    """Store the report of a job, once however often the job ran, and return the job's result."""
    values = {
        "kind": kind,
        **_target_fields(job.params["version"]),
        "other_id": job.params.get("other"),
        "result": report,
        "created_by_id": job.owner_id,
    }
    evaluation, _ = Evaluation.objects.get_or_create(job_id=job.id, defaults=values)
    return {"evaluation": evaluation.pk}


@transaction.atomic
def use_calibration(*, evaluation: Evaluation) -> SteeringProfile:
    """Replace the profile's draft by the evaluated edits with the proposed strengths."""
    if evaluation.kind != Evaluation.Kind.CALIBRATION:
        raise EvaluationError(f"{evaluation} is not a calibration, so it has no strengths to apply.")
    factor = evaluation.result["proposal"]["factor"]
    version = evaluation.version
    profile = evaluation.profile if version is None else version.profile
    if profile is None:
        raise EvaluationError(f"{evaluation} is of edits without a profile, so there is no draft to change.")
    edits = parse_edits(evaluation.edits if version is None else version.edits)
    replace_draft(profile=profile, edits=[with_factor(edit, factor) for edit in edits])
    return profile


def _subject(target: int | UnpublishedEdits) -> tuple[int, str]:
    """Return the model's primary key, and the label."""
    if isinstance(target, UnpublishedEdits):
        return target.model, target.label
    version = _version(target)
    return version.profile.model_id, str(version)


def _target_fields(target: int | dict[str, Any]) -> dict[str, Any]:
    """Return the evaluation's fields for what a job's parameters name."""
    if isinstance(target, int):
        return {"version": _version(target)}
    profile = SteeringProfile.objects.filter(pk=target["profile"]).first()  # it may have been deleted since
    return {"model_id": target["model"], "profile": profile, "edits": target["edits"]}


def _version(pk: int) -> ProfileVersion:
    row = ProfileVersion.objects.select_related("profile").filter(pk=pk).first()
    if row is None:
        raise EvaluationError(f"The profile version with the id {pk} does not exist.")
    return row
