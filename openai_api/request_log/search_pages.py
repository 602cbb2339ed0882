"""The list of the request log: a form, a page of rows by the place of the first one, and searches that are kept."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import path, reverse

from audit.keyset import KeysetPage, keyset_page
from openai_api.keyset import ByTime, Cursor, CursorError
from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.access import may_see_text, record_access
from openai_api.request_log.kept import kept_text
from openai_api.request_log.line import LogLine
from openai_api.request_log.saved_searches import delete_search, save_search, visible_searches
from openai_api.request_log.search import LogSearch, lean, size_text
from openai_api.request_log.search_form import CURSORS, SearchForm

PAGE_SIZE = 50
LIST = "admin:openai_api_requestlog_changelist"


class SearchPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """In place of the admin's own list, which counts all rows and passes over those of the pages before."""

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
        """The page of rows, and the ways to its neighbours."""
        search = form.search()
        try:
            page = search_page(search, before=request.GET.get("before", ""), after=request.GET.get("after", ""))
        except CursorError as error:
            return {"problems": [str(error)]}
        if search.text and not any(request.GET.get(name) for name in CURSORS):
            record_access(act=LogAccess.Act.SEARCH, user=_user(request), detail={"conditions": form.conditions})
        return {
            "lines": [LogLine.of(row) for row in page.rows],
            "size": size_text(search.rows(), page),
            "kept": kept_text(),
            "hides_console": not (search.source or search.id),
            "older": _link(form, before=page.older),
            "newer": _link(form, after=page.newer),
            "newest": f"?{urlencode(form.conditions)}",
        }

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
            self.message_user(request, f"The search “{saved}” is saved.", messages.SUCCESS)
        return HttpResponseRedirect(f"{reverse(LIST)}?{urlencode(form.conditions)}")

    def delete_search_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self.check_may_view(request)
        if not delete_search(owner=_user(request), pk=pk):
            raise PermissionDenied
        self.message_user(request, "The search is deleted.", messages.SUCCESS)
        return HttpResponseRedirect(reverse(LIST))


def search_page(
    search: LogSearch, before: str = "", after: str = "", size: int = PAGE_SIZE
) -> KeysetPage[RequestLog, Cursor]:
    """Raises CursorError."""
    return keyset_page(
        lean(search.rows()),
        ByTime("created_at"),
        size=size,
        before=Cursor.parse(before) if before else None,
        after=Cursor.parse(after) if after else None,
    )


def _link(form: SearchForm, **cursor: Cursor | None) -> str:
    given = {name: str(place) for name, place in cursor.items() if place is not None}
    return f"?{urlencode({**form.conditions, **given})}" if given else ""


def _problems(form: SearchForm) -> list[str]:
    """Each with its field's name, but those of the whole."""
    return [
        str(text) if field == "__all__" else f"{form.fields[field].label or field.capitalize()}: {text}"
        for field, texts in form.errors.items()
        for text in texts
    ]


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
