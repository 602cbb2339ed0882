"""The list of the request log: search form, keyset pages, excerpts and saved searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone

from core.pagination import ByTime, Cursor, CursorError, KeysetPage, keyset_page
from core.times import ago_text, utc_text
from openai_api.models import LogAccess, RequestLog, SavedSearch
from openai_api.request_log.access import may_see_text, record_access
from openai_api.request_log.pages.histogram import histogram
from openai_api.request_log.pages.messages import Excerpt, fetch_excerpts
from openai_api.request_log.scores import VIEW as SEE_SCORES
from openai_api.request_log.scores import mean_scores
from openai_api.request_log.search import LogSearch, lean, size_text
from openai_api.request_log.search_form import CURSORS, NEED_TEXT, SearchForm
from openai_api.request_log.summary import (
    ROOT,
    badge_of,
    key_text,
    milliseconds,
    tokens_text,
    visible_text,
)

MAX_OWN = 100
MAX_NAME = 100
MAX_SHOWN = 200
BY_TIME = ByTime("created_at")
RECENT = 5_000  # requests among which words and metadata are looked for first


@dataclass(frozen=True, slots=True)
class ShownSearch:
    """A saved search above the list, its conditions in the form's order; ``owner`` is "" for the user's own."""

    pk: int
    name: str
    query: str
    owner: str
    is_shared: bool


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the list, with control characters of names made visible.

    ``excerpt`` is None without texts, or without access to them.
    """

    pk: str
    created_at: datetime
    time: str
    ago: str
    model: str
    profile: str
    endpoint: str
    source: str
    status: int
    outcome: str
    badge: str
    tokens: str
    took: str
    first_token: str
    key: str
    user: str
    excerpt: Excerpt | None
    score: float | None = None

    @classmethod
    def from_row(cls, row: RequestLog, now: datetime, excerpt: Excerpt | None, score: float | None = None) -> LogLine:
        return cls(
            pk=row.pk,
            created_at=row.created_at,
            time=utc_text(row.created_at),
            ago=ago_text(row.created_at, now),
            model=visible_text(row.model),
            profile=visible_text(row.profile),
            endpoint=row.endpoint.removeprefix(ROOT),
            source=row.source,
            status=row.status,
            outcome=visible_text(row.error_code or row.finish_reason),
            badge=badge_of(row),
            tokens=tokens_text(row),
            took=milliseconds(row.total_ms),
            first_token="" if row.ttft_ms is None else milliseconds(row.ttft_ms, beside=row.total_ms),
            key=key_text(row),
            user=visible_text(row.user),
            excerpt=excerpt,
            score=score,
        )


@transaction.atomic
def save_search(*, owner: User, name: str, conditions: dict[str, str], is_shared: bool = False) -> SavedSearch:
    """Save a search, replacing one of the same name. Raises ValidationError."""
    if not conditions:
        raise ValidationError("The search has no conditions.")
    name = forms.CharField(max_length=MAX_NAME).clean(name)  # before the database reports it
    User.objects.select_for_update().get(pk=owner.pk)  # two concurrent saves would both pass the limit
    others = SavedSearch.objects.filter(owner=owner).exclude(name=name)
    if others.count() >= MAX_OWN:
        raise ValidationError(f"You have {MAX_OWN} saved searches; delete one first.")
    search = SavedSearch.objects.filter(owner=owner, name=name).first() or SavedSearch(owner=owner, name=name)
    search.conditions, search.is_shared = conditions, is_shared
    search.full_clean()
    search.save()
    return search


def delete_search(*, owner: User, pk: int) -> bool:
    """Delete a user's search; False if it does not exist."""
    return SavedSearch.objects.filter(owner=owner, pk=pk).delete()[0] > 0


def visible_searches(user: User) -> list[ShownSearch]:
    """Return the user's searches and shared ones. Those that search texts are shown only with access to them."""
    found = SavedSearch.objects.filter(Q(owner=user) | Q(is_shared=True)).select_related("owner")
    if not may_see_text(user):
        found = found.exclude(conditions__has_any_keys=NEED_TEXT)
    return [_shown(search, user) for search in found[:MAX_SHOWN]]


def _shown(search: SavedSearch, user: User) -> ShownSearch:
    owner = "" if search.owner_id == user.pk else search.owner.get_username()
    conditions = {name: search.conditions[name] for name in SearchForm.base_fields if name in search.conditions}
    return ShownSearch(search.pk, search.name, urlencode(conditions), owner, search.is_shared)


TEXTS = {
    "full": "Texts are stored{until}",
    "hash": "Only a SHA-256 of each text is stored{until}",
    "none": "Texts are not stored",
}


def stored_text() -> str:
    """Describe what the server stores; a key may store less of its own requests."""
    days, text_days = settings.MILLM_LOG_RETENTION_DAYS, settings.MILLM_LOG_TEXT_RETENTION_DAYS
    rows = f"Rows are deleted after {_days(days)}" if days else "Rows are never deleted"
    until = f" for {_days(text_days)}" if text_days else ""
    texts = TEXTS[settings.MILLM_LOG_CONTENT].format(until=until)
    return f"{rows}. {texts}. A key can store less."


def _days(days: int) -> str:
    return f"{days} day{'' if days == 1 else 's'}"


PAGE_SIZE = 50
LIST = "admin:openai_api_requestlog_changelist"
FILTERS = "_changelist_filters"  # Django's name for the list's query string


class SearchPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Replaces the admin's list, which counts all rows and reads those of earlier pages."""

    def get_urls(self) -> list[Any]:
        pages = (
            ("searches/add/", "save_search", self.save_search_view),
            ("searches/<int:pk>/delete/", "delete_search", self.delete_search_view),
        )
        own = [
            path(route, self.admin_site.admin_view(view), name=f"openai_api_requestlog_{name}")
            for route, name, view in pages
        ]
        return [*own, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        self.check_may_view(request)
        form = SearchForm(request.GET, sees_text=may_see_text(request.user))
        context = {**self.admin_site.each_context(request), "title": "Request log", "opts": self.opts, "form": form}
        context |= self._found(request, form) if form.is_valid() else {"problems": _problems(form)}
        context |= {
            "offers": form.offered(),
            "searches": visible_searches(_user(request)),
            "conditions": form.conditions,
            "chips": list(form.chips()),
            "query": urlencode(form.conditions),
            "may_export": self.has_export_permission(request),
            "sees_text": may_see_text(request.user),
        }
        return TemplateResponse(request, "admin/openai_api/requestlog/change_list.html", context)

    def check_may_view(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def has_export_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request) and request.user.has_perm("openai_api.export_requestlog")

    def _found(self, request: HttpRequest, form: SearchForm) -> dict[str, Any]:
        """Return the page of rows and links to its neighbours."""
        search = form.search()
        before, after = (request.GET.get(name, "") for name in CURSORS)
        try:
            page, is_recent = search_page(search, before, after)
        except CursorError as error:
            return {"problems": [str(error)]}
        now = timezone.now()
        by_time = search.metadata is not None and (_is_common(search) if before or after else is_recent)
        excerpts = self._excerpts(request, form, page.rows)
        ids = [row.pk for row in page.rows]
        scores = mean_scores(ids, search.score_name) if request.user.has_perm(SEE_SCORES) else {}
        return {
            "lines": [LogLine.from_row(row, now, excerpts.get(row.pk), scores.get(row.pk)) for row in page.rows],
            "size": size_text(search.rows(), page),
            "kept": stored_text(),
            "histogram": None if search.id else histogram(search, form.conditions, now, by_time=by_time),
            "older": _link(form, before=page.older),
            "newer": _link(form, after=page.newer),
            "newest": f"?{urlencode(form.conditions)}",
        }

    def _excerpts(self, request: HttpRequest, form: SearchForm, rows: Sequence[RequestLog]) -> dict[str, Excerpt]:
        """Return excerpts of the rows for users who may see texts, and record the access."""
        if not may_see_text(request.user):
            return {}
        text = form.conditions.get("text", "")
        excerpts = fetch_excerpts([row.pk for row in rows], text)
        searches_texts = any(form.conditions.get(name) for name in NEED_TEXT)
        is_search = searches_texts and not any(request.GET.get(name) for name in CURSORS)
        if is_search or excerpts:
            detail: dict[str, Any] = {"conditions": form.conditions}
            if excerpts:
                detail["requests"] = [row.pk for row in rows if row.pk in excerpts]
            act = LogAccess.Act.SEARCH if is_search else LogAccess.Act.LIST
            record_access(act=act, user=_user(request), detail=detail, num_rows=len(excerpts))
        return excerpts

    def save_search_view(self, request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self.check_may_view(request)
        form = SearchForm(QueryDict(request.POST.get("query", "")), sees_text=may_see_text(request.user))
        name, is_shared = request.POST.get("name", "").strip(), request.POST.get("is_shared") == "on"
        try:
            if not form.is_valid():
                raise ValidationError(_problems(form))
            saved = save_search(owner=_user(request), name=name, conditions=form.conditions, is_shared=is_shared)
        except ValidationError as error:
            self.message_user(request, f"The search was not saved. {' '.join(error.messages)}", messages.ERROR)
        else:
            self.message_user(request, f'Saved the search "{saved}".', messages.SUCCESS)
        return HttpResponseRedirect(f"{reverse(LIST)}?{urlencode(form.conditions)}")

    def delete_search_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self.check_may_view(request)
        if not delete_search(owner=_user(request), pk=pk):
            raise PermissionDenied
        self.message_user(request, "Deleted the search.", messages.SUCCESS)
        return HttpResponseRedirect(reverse(LIST))


def search_page(
    search: LogSearch, before: str = "", after: str = "", size: int = PAGE_SIZE
) -> tuple[KeysetPage[RequestLog, Cursor], bool]:
    """Return one page, and whether it was found among the RECENT requests before it. Raises CursorError.

    Words and metadata that many requests have are found there, without reading all matches to sort them by time.
    """
    start = Cursor.parse(before) if before else None
    end = Cursor.parse(after) if after else None
    if (search.text or search.metadata) and end is None:
        since = _recent(search, start)
        if since is not None:
            page = keyset_page(lean(replace(search, since=since).rows()), BY_TIME, size=size, before=start)
            if page.older is not None:
                return page, True
    return keyset_page(lean(search.rows()), BY_TIME, size=size, before=start, after=end), False


def _is_common(search: LogSearch) -> bool:
    """Return whether many of the newest requests have the metadata of a search."""
    since = _recent(search, None)
    return since is not None and len(replace(search, since=since).rows().values("pk")[:PAGE_SIZE]) == PAGE_SIZE


def _recent(search: LogSearch, before: Cursor | None) -> datetime | None:
    """Return the time of the RECENT-th request before a place; None if the search begins later, or there are fewer."""
    rows = RequestLog.objects.all() if search.until is None else RequestLog.objects.filter(created_at__lt=search.until)
    found = BY_TIME.older_than(rows, before).values_list("created_at", flat=True)[RECENT : RECENT + 1].first()
    return None if found is None or (search.since is not None and found <= search.since) else found


def _link(form: SearchForm, **cursor: Cursor | None) -> str:
    given = {name: str(place) for name, place in cursor.items() if place is not None}
    return f"?{urlencode({**form.conditions, **given})}" if given else ""


def _problems(form: SearchForm) -> list[str]:
    """Return the form's errors, each with its field's name."""
    return [
        str(text) if field == "__all__" else f"{form.fields[field].label or field.capitalize()}: {text}"
        for field, texts in form.errors.items()
        for text in texts
    ]


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
