"""The dashboard: the user's own work, notices, models, jobs and load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse

from console.attention import notices
from console.charts import charts, sparklines
from console.first_steps import first_steps
from console.home import home_cards, puts_work_first
from console.load.history import SPANS, read_history, total
from console.load.load import Load
from console.pages import Page, register_page
from inference.models import LanguageModel
from jobs.models import Job
from openai_api.http.public_url import public_url
from openai_api.keys.services import visible_keys
from steering.profiles.inline_edits import INLINE
from steering.visibility import SEE_ALL_PROFILES, visible_profiles

MAX_ROWS = 5
SEES_LOAD = "console.view_loadsample"


@dataclass(frozen=True, slots=True)
class Used:
    """An error code, profile or key, with its number of requests."""

    name: str
    requests: int
    url: str = ""


def context(request: HttpRequest) -> Mapping[str, Any]:
    user: Any = request.user
    site_url = public_url(request, "/").rstrip("/")
    return {
        "notices": notices(user),
        "steps": first_steps(user, site_url),
        "home": home_cards(user),
        "home_is_first": puts_work_first(user),
        "models": LanguageModel.objects.all() if user.has_perm("inference.view_languagemodel") else None,
        "memory_budget": settings.MILLM_MEMORY_BUDGET,
        "jobs": _jobs(user),
        **(_load(user, request.GET.get("span", "")) if user.has_perm(SEES_LOAD) else {}),
    }


def _load(user: Any, name: str) -> dict[str, Any]:
    span = SPANS.get(name, SPANS["hour"])
    log = LogLinks(span.name if user.has_perm("openai_api.view_requestlog") else "")
    points = read_history(span, datetime.now(UTC))
    whole = total(points)
    return {
        "span": span,
        "spans": SPANS.values(),
        "whole": whole,
        "charts": charts(span, points),
        "sparklines": sparklines(span, points),
        "errors": _most(whole.errors, log.of_code),
        "profiles": _profiles(user, whole, log) if user.has_perm("steering.view_steeringprofile") else None,
        "keys": _keys(user, whole) if user.has_perm("openai_api.view_apikey") else None,
    }


@dataclass(frozen=True, slots=True)
class LogLinks:
    """Links to the counted requests. ``span`` is empty for users who can't view the log."""

    span: str

    def of_code(self, code: str) -> str:
        return self._link(code=code)

    def of_profile(self, profile: str) -> str:
        return self._link(profile=profile) if "@" in profile else ""

    def _link(self, **conditions: str) -> str:
        log = reverse("admin:openai_api_requestlog_changelist")
        return f"{log}?{urlencode({**conditions, 'last': self.span, 'source': 'all'})}" if self.span else ""


def _most(counts: Mapping[str, int], link: Callable[[str], str]) -> list[Used]:
    """Return the most used; a last row sums up unnamed and further ones, so that the rows add up to all requests."""
    ordered = sorted(((name, number) for name, number in counts.items() if name), key=lambda item: -item[1])
    rows = [Used(name, number, link(name)) for name, number in ordered[:MAX_ROWS]]
    others = sum(counts.values()) - sum(row.requests for row in rows)
    return [*rows, Used("others", others)] if others else rows


def _profiles(user: Any, whole: Load, log: LogLinks) -> list[Used]:
    """Return the most used profiles; those that the user can't see are counted as others."""
    if user.has_perm(SEE_ALL_PROFILES):
        return _most(whole.profiles, log.of_profile)
    names = {label.partition("@")[0] for label in whole.profiles}
    seen = {INLINE, *visible_profiles(user).filter(name__in=names).values_list("name", flat=True)}
    counts: dict[str, int] = {}
    for label, number in whole.profiles.items():
        shown = label if label.partition("@")[0] in seen else ""
        counts[shown] = counts.get(shown, 0) + number
    return _most(counts, log.of_profile)


def _keys(user: Any, whole: Load) -> list[Used]:
    """Return the most used keys, without deleted keys and keys that the user can't see."""
    names = dict(visible_keys(user).filter(pk__in=[pk for pk in whole.keys if pk]).values_list("pk", "name"))
    used = [(names.get(int(pk)), pk, number) for pk, number in whole.keys.items() if pk]
    ordered = sorted(used, key=lambda item: -item[2])
    return [
        Used(name, number, reverse("admin:openai_api_apikey_change", args=[pk])) for name, pk, number in ordered if name
    ][:MAX_ROWS]


def _jobs(user: Any) -> list[Job] | None:
    if not user.has_perm("jobs.view_job"):
        return None
    return list(Job.objects.visible_to(user).order_by("-created_at")[:MAX_ROWS])


DASHBOARD = register_page(
    Page(name="dashboard", route="", title="Dashboard", template="console/dashboard.html", context=context)
)
