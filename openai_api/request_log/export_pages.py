"""The log as a file, sent while it is read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    QueryDict,
    StreamingHttpResponse,
)
from django.http.response import HttpResponseBase
from django.urls import path, reverse

from openai_api.database import in_database_however_long
from openai_api.request_log.access import EXPORT, may_see_text
from openai_api.request_log.export import FORMATS, Export, start_export
from openai_api.request_log.search_form import SearchForm

_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


class ExportPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """A POST, because it leaves a row in the trail."""

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.export_view)
        return [path("export/", view, name="openai_api_requestlog_export"), *super().get_urls()]

    def has_export_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request) and request.user.has_perm(EXPORT)

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        with_text = request.POST.get("with_text") == "on"
        if not self.has_export_permission(request) or (with_text and not may_see_text(request.user)):
            raise PermissionDenied
        form = SearchForm(QueryDict(request.POST.get("query", "")), sees_text=may_see_text(request.user))
        wanted = request.POST.get("format", "")
        if wanted not in FORMATS or not form.is_valid():
            return self._refuse(request, form)
        assert isinstance(request.user, User)
        export = start_export(
            search=form.search(),
            conditions=form.conditions,
            form=wanted,
            with_text=with_text,
            user=request.user,
        )
        return export_response(export)

    def _refuse(self, request: HttpRequest, form: SearchForm) -> HttpResponse:
        text = f"Nothing was exported. Formats are {' and '.join(FORMATS)}, conditions those of the form."
        self.message_user(request, text, messages.ERROR)
        url = reverse("admin:openai_api_requestlog_changelist")
        return HttpResponseRedirect(f"{url}?{urlencode(form.conditions)}")


def export_response(export: Export) -> StreamingHttpResponse:
    """A batch is read when the ones before it are sent."""
    response = StreamingHttpResponse(_batches(export), content_type=_TYPES[export.format])
    response.headers["Content-Disposition"] = f'attachment; filename="{export.file_name}"'
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"
    return response


async def _batches(export: Export) -> AsyncGenerator[bytes, None]:
    batches = export.batches()
    while (batch := await in_database_however_long(lambda: next(batches, None))) is not None:
        yield batch
