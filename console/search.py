"""Global search over models, profiles, SAEs and features, according to the user's permissions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse

from console.pages import Page, register_page
from inference.models import LanguageModel
from steering.models import SAE, Feature
from steering.visibility import visible_profiles

MAX_FOUND = 10
MAX_CHARS = 200


@dataclass(frozen=True, slots=True)
class Hit:
    name: str
    note: str
    url: str


@dataclass(frozen=True, slots=True)
class Group:
    """Results of one kind. ``more`` is the URL of the full list, empty if all results are shown."""

    title: str
    hits: tuple[Hit, ...]
    more: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A searchable kind. ``admin`` names its admin pages."""

    title: str
    permission: str
    admin: str
    find: Callable[[Any, str], Any]  # (user, text) to a query set
    note: Callable[[Any], str]


def search(request: HttpRequest) -> Mapping[str, Any]:
    """Return the results, none for a blank text. NUL is removed, because Postgres cannot store it."""
    text = request.GET.get("q", "").replace("\0", "").strip()[:MAX_CHARS]
    sources = [source for source in SOURCES if request.user.has_perm(source.permission)]
    groups = [_group(source, request.user, text) for source in sources] if text else []
    return {"searched": text, "groups": [group for group in groups if group.hits]}


def _group(source: Source, user: Any, text: str) -> Group:
    rows = list(source.find(user, text)[: MAX_FOUND + 1])
    hits = tuple(
        Hit(str(row), source.note(row), reverse(f"admin:{source.admin}_change", args=[row.pk]))
        for row in rows[:MAX_FOUND]
    )
    listed = reverse(f"admin:{source.admin}_changelist", query={"q": text})
    return Group(source.title, hits, listed if len(rows) > MAX_FOUND else "")


def _models(user: Any, text: str) -> Any:
    return LanguageModel.objects.filter(
        Q(name__icontains=text) | Q(aliases__icontains=text) | Q(source__icontains=text)
    )


def _profiles(user: Any, text: str) -> Any:
    named = Q(name__icontains=text) | Q(description__icontains=text)
    return visible_profiles(user).filter(named).select_related("model").order_by("name", "pk")


def _saes(user: Any, text: str) -> Any:
    return SAE.objects.filter(name__icontains=text).select_related("model").order_by("name", "pk")


def _features(user: Any, text: str) -> Any:
    return Feature.objects.search(text).select_related("sae")


SOURCES = (
    Source("Models", "inference.view_languagemodel", "inference_languagemodel", _models, lambda row: row.source),
    Source(
        "Profiles", "steering.view_steeringprofile", "steering_steeringprofile", _profiles, lambda row: row.description
    ),
    Source("SAEs", "steering.view_sae", "steering_sae", _saes, lambda row: f"of {row.model}"),
    Source("Features", "steering.view_feature", "steering_feature", _features, lambda row: row.description),
)

SEARCH = register_page(Page("search", "search/", "Search", "console/search.html", context=search))
