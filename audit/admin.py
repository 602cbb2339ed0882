"""The trail in the admin: read-only, whoever looks."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from audit.event_text import change_rows, object_url, through
from audit.models import AuditEvent
from audit.search import TrailForm, kind_name
from core.pagination import ByKey, keyset_page
from core.read_only_admin import ReadOnlyAdmin

PAGE_SIZE = 50


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    """Its list is a page of our own: the admin's counts all rows, and goes to far pages row by row."""

    class Media:
        css = {"all": ("audit/trail.css",)}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        form = TrailForm(request.GET)
        found = form.found()
        asked = form.cleaned_data
        page = keyset_page(found, ByKey(), size=PAGE_SIZE, before=asked.get("before"), after=asked.get("after"))
        kept = {name: str(value) for name, value in request.GET.items() if value and name not in ("before", "after")}
        context = {
            **self.admin_site.each_context(request),
            **(extra_context or {}),
            "title": "Audit trail",
            "opts": self.opts,
            "media": self.media,
            "form": form,
            "is_filtered": any(name in form.fields for name in kept),
            "rows": [_row(event) for event in page.rows],
            "older": None if page.older is None else urlencode({**kept, "before": page.older}),
            "newer": None if page.newer is None else urlencode({**kept, "after": page.newer}),
        }
        return TemplateResponse(request, "admin/audit/auditevent/change_list.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        event = self.get_object(request, object_id)
        shown = {"event": _row(event)} if event is not None and self.has_view_permission(request) else {}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **shown})


def _row(event: AuditEvent) -> dict[str, Any]:
    return {
        "event": event,
        "kind": kind_name(event.kind),
        "url": object_url(event),
        "through": through(event),
        "changes": change_rows(event),
    }
