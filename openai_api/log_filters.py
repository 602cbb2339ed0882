"""Filters of the request log that take their choices from small tables, never from the log itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from inference.models import LanguageModel
from openai_api.models import RequestLog
from steering.models import SteeringProfile

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/models/{id}",
    "/v1/*",
)
OUTCOMES = {
    "ok": ("succeeded", Q(status__lt=400, error_code="")),
    "failed": ("failed in the stream", Q(status__lt=400) & ~Q(error_code="") & ~Q(error_code="client_disconnected")),
    "left": ("client left", Q(error_code="client_disconnected")),
    "refused": ("refused (4xx)", Q(status__gte=400, status__lt=500) & ~Q(error_code="client_disconnected")),
    "error": ("server error (5xx)", Q(status__gte=500)),
}


class LogFilter(admin.SimpleListFilter):
    """Base: one value, applied by :meth:`condition`."""

    def condition(self, value: str) -> Q:
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: QuerySet[RequestLog]) -> QuerySet[RequestLog]:
        value = self.value()
        return queryset if value is None else queryset.filter(self.condition(value))


class OutcomeFilter(LogFilter):
    title = "status"
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(key, label) for key, (label, _) in OUTCOMES.items()]

    def condition(self, value: str) -> Q:
        return OUTCOMES[value][1] if value in OUTCOMES else Q()


class EndpointFilter(LogFilter):
    title = "endpoint"
    parameter_name = "at"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(endpoint, endpoint) for endpoint in ENDPOINTS]

    def condition(self, value: str) -> Q:
        return Q(endpoint=value)


class ModelFilter(LogFilter):
    title = "model"
    parameter_name = "of"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(name, name) for name in LanguageModel.objects.values_list("name", flat=True)]

    def condition(self, value: str) -> Q:
        return Q(model=value)


class ProfileFilter(LogFilter):
    title = "profile"
    parameter_name = "with"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        names = SteeringProfile.objects.order_by("name").values_list("name", flat=True).distinct()
        return [("-", "none"), *((name, name) for name in names)]

    def condition(self, value: str) -> Q:
        return Q(profile="") if value == "-" else Q(profile__startswith=f"{value}@")
