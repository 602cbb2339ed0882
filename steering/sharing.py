"""Shares profiles and vector sets with groups, and provides the form field for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest

from audit.models import AuditEvent
from audit.record import record
from inference.permissions import groups_to_share_with, may_share
from steering.models import SteeringProfile, VectorSet


@transaction.atomic
def share_with_groups(*, subject: SteeringProfile | VectorSet, groups: Iterable[Group], user: User | None) -> None:
    """Share with exactly these groups, and record the change in the audit trail."""
    before = _names(subject.shared_with.all())
    subject.shared_with.set(groups)
    after = _names(subject.shared_with.all())
    if before != after:
        changes = {"shared_with": [before, after]}
        record(AuditEvent.Action.CHANGE, subject, user=user, model=subject.model.name, changes=changes)


def _names(groups: Iterable[Group]) -> list[str]:
    return sorted(group.name for group in groups)


class SharingAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """A base class for models with ``shared_with``. Only the owner may change the groups; others see them."""

    owner_field: ClassVar[str]
    see_all: ClassVar[str]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - Django's signature
        form = super().get_form(request, obj, change, **kwargs)
        field = form.base_fields.get("shared_with")
        if isinstance(field, forms.ModelMultipleChoiceField):
            field.queryset = self._choices(request, obj)
            field.widget = forms.CheckboxSelectMultiple()
            field.widget.choices = field.choices
            field.help_text = "Groups with access. Their role decides what they can do."
        return form

    def may_share(self, request: HttpRequest, obj: Any) -> bool:
        return obj is None or may_share(request.user, getattr(obj, self.owner_field), see_all=self.see_all)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        groups = form.cleaned_data.pop("shared_with", None)
        super().save_related(request, form, formsets, change)
        if groups is not None:
            share_with_groups(subject=form.instance, groups=groups, user=request.user)  # type: ignore[arg-type]  # staff

    def _choices(self, request: HttpRequest, obj: Any) -> QuerySet[Group]:
        """Return the groups to choose from, including current ones that the owner has left."""
        own = groups_to_share_with(request.user, see_all=self.see_all)
        if obj is None:
            return own
        return Group.objects.filter(pk__in=[*own.values_list("pk", flat=True), *_keys(obj)]).order_by("name")


def _keys(obj: Any) -> list[int]:
    return list(obj.shared_with.values_list("pk", flat=True))
