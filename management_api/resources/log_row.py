"""The request log, and scores of its requests. Only users with the permission get texts of requests."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from management_api.serializers import Choice, Number, ReadSerializer, StrictInput, Text, described, described_field
from management_api.viewset import Filters, Resource
from openai_api.http.errors import forbidden
from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.access import may_see_text, record_access
from openai_api.request_log.scores import ADD as MAY_SCORE
from openai_api.request_log.scores import VIEW as SEE_SCORES
from openai_api.request_log.scores import delete_score, exported_scores, may_score, save_score

VIEW = "openai_api.view_requestlog"
SEE_TEXT = "openai_api.view_prompt_text"
TEXTS = ("prompt", "completion")


class LogOut(ReadSerializer):
    class Meta:
        model = RequestLog
        fields: tuple[str, ...] = (
            *("id", "created_at", "source", "api_key", "key_prefix", "endpoint", "model", "profile", "fingerprint"),
            *("policies", "steering_expected", "steering_applied", "steering_effects", "stream", "status"),
            *("error_code", "finish_reason"),
            *("prompt_tokens", "cached_tokens", "completion_tokens", "media", "queue_ms", "ttft_ms", "total_ms"),
            *("client_address", "user"),
        )


class ScoreOut(serializers.Serializer[Any]):
    user = serializers.CharField()
    name = serializers.CharField(help_text="What was judged; empty: the answer as a whole.")
    value = serializers.FloatField(help_text="0 is bad, 1 is good.")
    note = serializers.CharField(required=False, help_text="Only for users who may view request texts.")


class LogDetail(LogOut):
    scores = serializers.SerializerMethodField(help_text="Empty for users who may not see scores.")

    class Meta(LogOut.Meta):
        fields: tuple[str, ...] = (*LogOut.Meta.fields, "scores")

    @described_field(ScoreOut(many=True))
    def get_scores(self, row: RequestLog) -> list[dict[str, Any]]:
        user: User = self.context["request"].user
        if not user.has_perm(SEE_SCORES):
            return []
        return exported_scores([row.pk], with_notes=may_see_text(user)).get(row.pk, [])


class LogText(LogDetail):
    # Parameters contain texts too, such as tools and stop strings.
    class Meta(LogDetail.Meta):
        fields: tuple[str, ...] = (*LogDetail.Meta.fields, "error_message", "parameters", *TEXTS)


class ScoreInput(StrictInput):
    name = Text(
        max_length=60,
        required=False,
        default="",
        allow_blank=True,
        help_text="What is judged; empty: the answer as a whole.",
    )
    value = Number(min_value=0, max_value=1, help_text="0 is bad, 1 is good.")
    note = Text(
        max_length=1_000,
        required=False,
        default="",
        allow_blank=True,
        help_text="Needs permission to view request texts.",
    )


class ScoreFilters(Filters):
    name = serializers.CharField(max_length=60, required=False, default="", allow_blank=True)


class LogFilters(Filters):
    model = serializers.CharField(max_length=200, required=False)
    profile = serializers.CharField(max_length=200, required=False, help_text="name or name@version")
    api_key = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    user = serializers.CharField(max_length=200, required=False)
    source = Choice(choices=RequestLog.Source.choices, required=False)  # type: ignore[assignment]  # the stubs have a field's attribute `source`
    status = serializers.IntegerField(min_value=0, max_value=999, required=False)
    error_code = serializers.CharField(max_length=100, required=False)
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False)
    min_total_ms = serializers.FloatField(min_value=0, required=False)


@described(tags=["Log"])
class Logs(Resource):
    queryset = RequestLog.objects.none()
    serializer_class = LogOut
    filters = LogFilters
    ordering = ("-created_at", "-id")
    lookup_value_regex = "[^/]+"
    permissions = {"list": VIEW, "retrieve": VIEW, "score": MAY_SCORE, "delete_score": MAY_SCORE}

    def rows(self, user: User) -> QuerySet[RequestLog]:
        rows = RequestLog.objects.all()
        return rows if self.action == "retrieve" and user.has_perm(SEE_TEXT) else rows.defer(*TEXTS, "parameters")

    def filter_rows(self, rows: QuerySet[Any], query: Any) -> QuerySet[Any]:
        ranges = {"since": "created_at__gte", "until": "created_at__lt", "min_total_ms": "total_ms__gte"}
        conditions = {ranges.get(name, name): value for name, value in query.items() if name != "profile"}
        rows = rows.filter(**conditions)
        if (profile := query.get("profile")) is None:
            return rows
        return rows.filter(Q(profile=profile) if "@" in profile else Q(profile__startswith=f"{profile}@"))

    @described(parameters=[LogFilters])
    def list(self, request: Request) -> Response:
        """List requests, newest first, without texts."""
        return super().list(request)

    @described(responses=LogText)
    def retrieve(self, request: Request, pk: str) -> Response:
        """Return a request. Texts and parameters are only included for users who may view request texts."""
        row = self.get_object()
        if not may_see_text(self.user):
            return self._detail(row, LogDetail)
        if row.prompt or row.completion:
            record_access(act=LogAccess.Act.READ, user=self.user, request_id=row.pk)
        return self._detail(row, LogText)

    @described(request=ScoreInput, responses=LogDetail)
    @action(detail=True, methods=["put"])
    def score(self, request: Request, pk: str) -> Response:
        """Score a request. Replaces the earlier score of the same account and name."""
        row, given = self._scored(), self.read(ScoreInput)
        if given["note"] and not may_see_text(self.user):
            raise forbidden("A note requires permission to view request texts.", code="permission_denied", param="note")
        save_score(row=row, user=self.user, **given)
        return self._detail(row, LogDetail)

    @described(parameters=[ScoreFilters], responses={204: None})
    @score.mapping.delete
    def delete_score(self, request: Request, pk: str) -> Response:
        """Delete the account's score of a request, of the `name` in the query, if there is one."""
        query = self._checked(ScoreFilters(data=request.query_params.dict()))
        delete_score(row=self._scored(), user=self.user, name=query["name"])
        return Response(status=204)

    def _scored(self) -> RequestLog:
        """Return the request, to a user who may score it."""
        if not may_score(self.user):
            raise forbidden("You need permission to view the request log and its scores.", code="permission_denied")
        row: RequestLog = self.get_object()
        return row

    def _detail(self, row: RequestLog, kind: type[LogDetail]) -> Response:
        return Response(kind(row, context=self.get_serializer_context()).data)
