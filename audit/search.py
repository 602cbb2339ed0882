"""What the trail can be searched by."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any

from django import forms
from django.apps import apps
from django.db.models import Q, QuerySet

from audit.models import AuditEvent

MAX_KEY = 2**63 - 1


class TrailForm(forms.Form):
    """Every field is optional. ``before`` and ``after`` are keys of events, from the links to other pages."""

    q = forms.CharField(label="Name or detail", required=False, max_length=200)
    user = forms.CharField(label="User", required=False, max_length=150)
    action = forms.ChoiceField(label="Act", required=False, choices=[("", "any"), *AuditEvent.Action.choices])
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
        """The events that fit; those of a form that is not valid fit nothing."""
        if not self.is_valid():
            return AuditEvent.objects.none()
        return AuditEvent.objects.filter(_condition(self.cleaned_data))


def _condition(asked: dict[str, Any]) -> Q:
    exact = {"user": "user", "action": "action", "kind": "kind", "object": "object_id"}
    condition = Q(**{field: asked[name] for name, field in exact.items() if asked[name]})
    if asked["since"]:
        condition &= Q(at__gte=datetime.combine(asked["since"], time.min, UTC))
    if asked["until"]:
        condition &= Q(at__lte=datetime.combine(asked["until"], time.max, UTC))
    if asked["q"]:
        text = asked["q"]
        condition &= Q(subject__icontains=text) | Q(detail__icontains=text) | Q(request_id=text) | Q(key=text)
    return condition


def kind_choices() -> list[tuple[str, str]]:
    """The models of this project, and Django's accounts."""
    own = [config for config in apps.get_app_configs() if not config.name.startswith(("django.contrib.", "procras"))]
    rows = [model for config in own for model in config.get_models()]
    rows += list(apps.get_app_config("auth").get_models())
    return sorted((row._meta.label_lower, str(row._meta.verbose_name)) for row in rows)


def kind_name(kind: str) -> str:
    """In words; the label itself where no such model exists any more."""
    return dict(kind_choices()).get(kind, kind)
