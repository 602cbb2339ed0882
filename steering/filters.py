"""Filters of the list of features."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from steering.models import Feature

_DENSITIES = {
    "dead": ("never", Q(density=0)),
    "rare": ("below 0.1 %", Q(density__gt=0, density__lt=0.001)),
    "usual": ("0.1 % to 5 %", Q(density__gte=0.001, density__lt=0.05)),
    "dense": ("5 % and more", Q(density__gte=0.05)),
    "unknown": ("not measured", Q(density__isnull=True)),
}


class DensityFilter(admin.SimpleListFilter):
    title = "how often it fires"
    parameter_name = "fires"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(key, label) for key, (label, _) in _DENSITIES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Feature]) -> QuerySet[Feature]:
        choice = _DENSITIES.get(self.value() or "")
        return queryset if choice is None else queryset.filter(choice[1])


class SAEFilter(admin.RelatedFieldListFilter):
    """Named as people write it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.title = "SAE"


class LabelledFilter(admin.SimpleListFilter):
    title = "label"
    parameter_name = "labelled"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return (("yes", "has one"), ("no", "has none"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Feature]) -> QuerySet[Feature]:
        match self.value():
            case "yes":
                return queryset.exclude(label="")
            case "no":
                return queryset.filter(label="")
            case _:
                return queryset
