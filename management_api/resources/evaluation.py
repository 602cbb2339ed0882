"""Reports of sweeps, calibrations and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from inference.models import LanguageModel
from management_api.resources.job import JobOut, job_started
from management_api.resources.version import (
    EVALUATE,
    CalibrationInput,
    ComparisonInput,
    SweepInput,
    calibration_params,
    comparison_params,
    sweep_params,
)
from management_api.serializers import OBJECT, Choice, ReadSerializer, StrictInput, VisibleRowField, described
from management_api.viewset import Filters, Resource
from openai_api.http.errors import invalid
from steering.evaluation.params import EvaluationParams
from steering.evaluation.runner import UnpublishedEdits
from steering.evaluation.services import create_evaluation, draft_target, inline_target, use_calibration
from steering.models import Evaluation
from steering.profiles.drafts import draft_edits
from steering.profiles.inline_edits import read_short_edits
from steering.spec.rendering import edits_to_json
from steering.visibility import visible_evaluations, visible_profiles, visible_versions

VIEW = "steering.view_evaluation"


class EvaluationOut(ReadSerializer):
    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)

    class Meta:
        model = Evaluation
        fields: tuple[str, ...] = (
            *("id", "kind", "model", "version", "profile", "other", "job", "created_by", "created_at"),
        )


class EvaluationDetail(EvaluationOut):
    class Meta(EvaluationOut.Meta):
        fields: tuple[str, ...] = (*EvaluationOut.Meta.fields, "edits", "result")


class EvaluationFilters(Filters):
    kind = serializers.ChoiceField(choices=Evaluation.Kind.choices, required=False)
    model = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    version = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    profile = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    job = serializers.UUIDField(required=False)


TARGETS = ("version", "draft", "edits")


class TargetInput(StrictInput):
    kind = Choice(choices=Evaluation.Kind.choices)
    version = VisibleRowField(find=visible_versions, required=False)
    draft = VisibleRowField(
        find=lambda user: visible_profiles(user).select_related("model"), required=False, help_text="A profile's id."
    )
    edits = serializers.ListField(
        child=serializers.JSONField(), min_length=1, required=False, help_text="As of a draft. Requires `model`."
    )
    model = VisibleRowField(find=lambda user: LanguageModel.objects.all(), required=False)


class EvaluationInput(SweepInput, CalibrationInput, ComparisonInput, TargetInput):
    """A target with the parameters of its kind: those of versions/ID/sweep, calibrate or compare."""


KINDS: dict[str, tuple[type[StrictInput], Callable[[int | UnpublishedEdits, dict[str, Any]], EvaluationParams]]] = {
    Evaluation.Kind.SWEEP: (SweepInput, sweep_params),
    Evaluation.Kind.CALIBRATION: (CalibrationInput, calibration_params),
    Evaluation.Kind.COMPARISON: (ComparisonInput, comparison_params),
}


def evaluation_target(data: dict[str, Any]) -> int | UnpublishedEdits:
    """Return the version, draft or edits. Raise MillmError if there is not exactly one, or it cannot steer."""
    given = [name for name in TARGETS if name in data]
    if len(given) != 1:
        raise invalid("Send exactly one of `version`, `draft` and `edits`.", param=given[1] if given else "version")
    if ("model" in data) != ("edits" in data):
        param = "model"
        needs = "`edits` requires `model`." if "edits" in data else "`model` is only for `edits`."
        raise invalid(needs, param=param, code=None if "model" in data else "missing_required_parameter")
    if "version" in data:
        return int(data["version"].pk)
    if "draft" in data:
        return draft_target(profile=data["draft"])
    return inline_target(model=data["model"], edits=read_short_edits(data["model"], data["edits"]))


@described(tags=["Evaluations"])
class Evaluations(Resource):
    queryset = Evaluation.objects.none()
    serializer_class = EvaluationOut
    filters = EvaluationFilters
    ordering = ("-created_at", "-pk")
    permissions = {"list": VIEW, "retrieve": VIEW, "create": EVALUATE, "use": EVALUATE}

    def rows(self, user: User) -> QuerySet[Evaluation]:
        return visible_evaluations(user).select_related("created_by")

    @described(parameters=[EvaluationFilters])
    def list(self, request: Request) -> Response:
        """List evaluations, newest first."""
        return super().list(request)

    @described(responses=EvaluationDetail)
    def retrieve(self, request: Request, pk: str) -> Response:
        """Return an evaluation with its report."""
        return Response(EvaluationDetail(self.get_object()).data)

    @described(request=EvaluationInput, responses={202: JobOut})
    def create(self, request: Request) -> Response:
        """Start a job that evaluates a version, the draft of a profile, or edits that belong to no profile."""
        body: dict[str, Any] = dict(request.data)
        context, names = self.get_serializer_context(), set(TargetInput().fields)
        own = {name: value for name, value in body.items() if name in names}
        target = self._checked(TargetInput(data=own, context=context))
        options, params = KINDS[target["kind"]]
        rest = {name: value for name, value in body.items() if name not in names}
        values = self._checked(options(data=rest, context=context))
        job = create_evaluation(params=params(evaluation_target(target), values), owner=self.user)
        return job_started(job)

    @described(request=None, responses=OBJECT)
    @action(detail=True, methods=["post"])
    def use(self, request: Request, pk: str) -> Response:
        """Set the strength of the profile's draft to the one that the calibration proposes."""
        profile = use_calibration(evaluation=self.get_object())
        return Response({"profile": profile.pk, "edits": edits_to_json(draft_edits(profile))})
