"""Filters of the list of jobs."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs.kinds import known_kinds
from jobs.models import Job


class KindFilter(admin.SimpleListFilter):
    """By the kinds that this process knows, in words; never by a look at all jobs."""

    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(kind.name, kind.title) for kind in known_kinds()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        value = self.value()
        return queryset if value is None else queryset.filter(kind=value)
