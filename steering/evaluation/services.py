"""Writes of evaluations: enqueued from pages and commands alike, kept once, and used."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from jobs.models import Job
from jobs.services import enqueue_job
from steering.errors import EvaluationError
from steering.evaluation.kinds import CALIBRATE, COMPARE, SWEEP
from steering.evaluation.params import CalibrationParams, ComparisonParams, EvaluationParams, SweepParams, to_params
from steering.models import Evaluation, ProfileVersion, SteeringProfile
from steering.services import replace_draft
from steering.spec.factor import with_factor
from steering.spec.parsing import parse_edits

PRIORITY = 0
_KINDS = {
    SweepParams: (SWEEP, "Sweep"),
    CalibrationParams: (CALIBRATE, "Calibrate"),
    ComparisonParams: (COMPARE, "Compare"),
}


def create_evaluation(*, wish: EvaluationParams, owner: User | None = None) -> Job:
    """Enqueue it; EvaluationError where the versions do not exist or do not fit each other."""
    kind, verb = _KINDS[type(wish)]
    version = _version(wish.version)
    title = f"{verb} {version}"
    if isinstance(wish, ComparisonParams):
        other = None if wish.other is None else _version(wish.other)
        if other is not None and other.profile.model_id != version.profile.model_id:
            raise EvaluationError(f"{version} and {other} belong to different models.")
        title = f"{verb} {version} with {other or 'no profile'}"
    return enqueue_job(kind=kind, params=to_params(wish), owner=owner, title=title, priority=PRIORITY)


def keep_evaluation(
    *, kind: str, job_id: uuid.UUID, owner_id: int | None, version_id: int, other_id: int | None, result: dict[str, Any]
) -> Evaluation:
    """Once per job, however often its run came to its end."""
    values = {"kind": kind, "version_id": version_id, "other_id": other_id, "result": result}
    return Evaluation.objects.get_or_create(job_id=job_id, defaults={**values, "created_by_id": owner_id})[0]


@transaction.atomic
def use_calibration(*, evaluation: Evaluation) -> SteeringProfile:
    """The profile's draft becomes the version with the proposed strengths; publish it to use them."""
    if evaluation.kind != Evaluation.Kind.CALIBRATION:
        raise EvaluationError(f"{evaluation} proposes no strength.")
    factor = evaluation.result["proposal"]["factor"]
    profile = evaluation.version.profile
    edits = [with_factor(edit, factor) for edit in parse_edits(evaluation.version.edits)]
    replace_draft(profile=profile, edits=edits)
    return profile


def _version(pk: int) -> ProfileVersion:
    row = ProfileVersion.objects.select_related("profile").filter(pk=pk).first()
    if row is None:
        raise EvaluationError(f"There is no version with the number {pk}.")
    return row
