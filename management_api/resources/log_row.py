"""The request log. Only users with the permission get texts of requests."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from management_api.serializers import Choice, ReadSerializer, described
from management_api.viewset import Filters, Resource
from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.access import may_see_text, record_access

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


class LogText(LogOut):
    # Parameters contain texts too, such as tools and stop strings.
    class Meta(LogOut.Meta):
        fields: tuple[str, ...] = (*LogOut.Meta.fields, "error_message", "parameters", *TEXTS)


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
    permissions = {"list": VIEW, "retrieve": VIEW}

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
            return Response(LogOut(row).data)
        if row.prompt or row.completion:
            record_access(act=LogAccess.Act.READ, user=self.user, request_id=row.pk)
        return Response(LogText(row).data)
