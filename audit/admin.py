"""Read-only admin pages of the audit trail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, time
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.apps import apps
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse

from audit.models import AuditEvent
from core.pagination import ByKey, keyset_page
from core.read_only_admin import ReadOnlyAdmin


def through(event: AuditEvent) -> str:
    """Return the request, key or command that made the change."""
    parts = (f"key {event.key}" if event.key else "", event.command, event.request_id)
    return ", ".join(part for part in parts if part)


def change_rows(event: AuditEvent) -> list[tuple[str, str, str]]:
    """Return rows of field, value before and value after."""
    return list(_rows(event.changes))


def _rows(changes: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(changes, dict):
        for field, values in changes.items():
            if isinstance(values, list) and len(values) == 2:
                yield field.replace("_", " "), _shown(values[0]), _shown(values[1])


def _shown(value: Any) -> str:
    if value is None or value == "" or value == [] or value == {}:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "\n".join(each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def object_url(event: AuditEvent) -> str | None:
    """Return the URL of the object's admin page. The object may have been deleted since."""
    if not event.kind or not event.object_id or event.action == AuditEvent.Action.DELETE:
        return None
    try:
        return reverse(f"admin:{event.kind.replace('.', '_')}_change", args=[event.object_id])
    except NoReverseMatch:
        return None


MAX_KEY = 2**63 - 1


class TrailForm(forms.Form):
    """Filters of the trail, all optional. ``before`` and ``after`` are event ids from the links to other pages."""

    q = forms.CharField(label="Name or detail", required=False, max_length=200)
    user = forms.CharField(label="User", required=False, max_length=150)
    action = forms.ChoiceField(label="Action", required=False, choices=[("", "any"), *AuditEvent.Action.choices])
    kind = forms.CharField(label="Object", required=False, max_length=100, widget=forms.Select)
    object = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)
    since = forms.DateField(label="From", required=False, widget=forms.DateInput(attrs={"type": "date"}))
    until = forms.DateField(label="To", required=False, widget=forms.DateInput(attrs={"type": "date"}))
    before = forms.IntegerField(required=False, min_value=0, max_value=MAX_KEY, widget=forms.HiddenInput)
    after = forms.IntegerField(required=False, min_value=0, max_value=MAX_KEY, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["kind"].widget.choices = [("", "any"), *kind_choices()]

    def found(self) -> QuerySet[AuditEvent]:
        """Return the matching events, or none if the form is invalid."""
        if not self.is_valid():
            return AuditEvent.objects.none()
        return AuditEvent.objects.filter(_condition(self.cleaned_data))


def _condition(filters: dict[str, Any]) -> Q:
    exact = {"user": "user", "action": "action", "kind": "kind", "object": "object_id"}
    condition = Q(**{field: filters[name] for name, field in exact.items() if filters[name]})
    if filters["since"]:
        condition &= Q(at__gte=datetime.combine(filters["since"], time.min, UTC))
    if filters["until"]:
        condition &= Q(at__lte=datetime.combine(filters["until"], time.max, UTC))
    if filters["q"]:
        text = filters["q"]
        condition &= Q(subject__icontains=text) | Q(detail__icontains=text) | Q(request_id=text) | Q(key=text)
    return condition


def kind_choices() -> list[tuple[str, str]]:
    """Return choices for the models of this project and for Django's users and groups."""
    own = [config for config in apps.get_app_configs() if not config.name.startswith(("django.contrib.", "procras"))]
    rows = [model for config in own for model in config.get_models()]
    rows += list(apps.get_app_config("auth").get_models())
    return sorted((row._meta.label_lower, str(row._meta.verbose_name)) for row in rows)


def kind_name(kind: str) -> str:
    """Return the model's verbose name, or its label if the model no longer exists."""
    return dict(kind_choices()).get(kind, kind)


PAGE_SIZE = 50


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    """Admin of events with a custom list, because Django's counts all rows and is slow for old events."""

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
