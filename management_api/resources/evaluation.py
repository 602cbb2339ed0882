"""Reports of sweeps, calibrations and comparisons."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from management_api.serializers import OBJECT, ReadSerializer, described
from management_api.viewset import Filters, Resource
from steering.evaluation.services import use_calibration
from steering.models import Evaluation
from steering.profiles.drafts import draft_edits
from steering.spec.rendering import edits_to_json
from steering.visibility import visible_evaluations

VIEW = "steering.view_evaluation"


class EvaluationOut(ReadSerializer):
    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)

    class Meta:
        model = Evaluation
        fields: tuple[str, ...] = ("id", "kind", "version", "other", "job", "created_by", "created_at")


class EvaluationDetail(EvaluationOut):
    class Meta(EvaluationOut.Meta):
        fields: tuple[str, ...] = (*EvaluationOut.Meta.fields, "result")


class EvaluationFilters(Filters):
    kind = serializers.ChoiceField(choices=Evaluation.Kind.choices, required=False)
    version = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    job = serializers.UUIDField(required=False)


@described(tags=["Evaluations"])
class Evaluations(Resource):
    queryset = Evaluation.objects.none()
    serializer_class = EvaluationOut
    filters = EvaluationFilters
    ordering = ("-created_at", "-pk")
    permissions = {"list": VIEW, "retrieve": VIEW, "use": "steering.change_steeringprofile"}

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

    @described(request=None, responses=OBJECT)
    @action(detail=True, methods=["post"])
    def use(self, request: Request, pk: str) -> Response:
        """Set the strength of the profile's draft to the one that the calibration proposes."""
        profile = use_calibration(evaluation=self.get_object())
        return Response({"profile": profile.pk, "edits": edits_to_json(draft_edits(profile))})
