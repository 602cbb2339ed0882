"""The edits of a profile's draft, with what their strengths come to."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.forms import ModelChoiceField
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from steering.drafts import edit_of
from steering.forms import FeatureEditForm, FeatureSelect, VectorEditForm
from steering.models import Feature, FeatureEdit, SteeringProfile
from steering.spec.edit import EditSpec
from steering.spec.errors import InvalidSpecError
from steering.spec.units import STRONG_PUSH


class _EditInline(admin.TabularInline):  # type: ignore[type-arg]  # it takes none at run time
    model = FeatureEdit
    readonly_fields = ("coefficient", "push")
    extra = 0

    @admin.display(description="comes to")
    def coefficient(self, edit: FeatureEdit) -> SafeString | str:
        """The raw number that the operation works with, or what is missing to know it."""
        if edit._state.adding:
            return "–"
        try:
            return coefficient_text(edit_of(edit))
        except InvalidSpecError as error:
            return format_html('<span class="steering-warning">{}</span>', error.problems[0].message)

    @admin.display(description="push")
    def push(self, edit: FeatureEdit) -> SafeString | str:
        """The largest step as a fraction of the residual's mean norm."""
        if edit._state.adding:
            return "–"
        try:
            return push_text(edit_of(edit).push)
        except InvalidSpecError:
            return "–"


class FeatureEditInline(_EditInline):
    form = FeatureEditForm
    verbose_name = "feature edit"
    verbose_name_plural = "feature edits"
    fields = (*FeatureEditForm.Meta.fields, "coefficient", "push")
    autocomplete_fields = ("feature", "gate_feature")

    def get_queryset(self, request: HttpRequest) -> QuerySet[FeatureEdit]:
        rows = super().get_queryset(request).filter(feature__isnull=False)
        return rows.select_related("profile", "feature__sae", "gate_feature__sae")

    def get_extra(self, request: HttpRequest, obj: SteeringProfile | None = None, **kwargs: Any) -> int:
        return 0 if obj is None or obj.edits.exists() else 1

    def get_formset(self, request: HttpRequest, obj: SteeringProfile | None = None, **kwargs: Any) -> Any:
        formset = super().get_formset(request, obj, **kwargs)
        for name in ("feature", "gate_feature"):
            field = formset.form.base_fields.get(name)  # absent for users who may only look
            if isinstance(field, ModelChoiceField) and obj is not None:
                field.required = name == "feature"
                field.queryset = Feature.objects.filter(sae__model_id=obj.model_id)
                select = FeatureSelect(FeatureEdit._meta.get_field(name), self.admin_site)
                select.language_model = obj.model_id
                select.choices = field.widget.choices
                field.widget.widget = select
                field.widget.can_change_related = False
        return formset


class VectorEditInline(_EditInline):
    form = VectorEditForm
    verbose_name = "vector edit"
    verbose_name_plural = "vector edits (plain directions, for example from contrasted prompts)"
    fields = (*VectorEditForm.Meta.fields, "coefficient", "push")
    classes = ("collapse",)

    def get_formset(self, request: HttpRequest, obj: SteeringProfile | None = None, **kwargs: Any) -> Any:
        formset = super().get_formset(request, obj, **kwargs)
        if "unit" in formset.form.base_fields:
            formset.form.base_fields["unit"].initial = FeatureEdit.Unit.RAW
        return formset

    def get_queryset(self, request: HttpRequest) -> QuerySet[FeatureEdit]:
        return super().get_queryset(request).filter(vector__isnull=False).select_related("profile")


def coefficient_text(edit: EditSpec) -> str:
    match edit.operation:
        case "norm_preserving":
            return "–"
        case "scale" | "orthogonal":
            return f"factor {edit.raw:.4g}"
        case "projection_cap":
            return f"{'' if edit.raw_lower is None else f'{edit.raw_lower:.4g} to '}{edit.raw:.4g}"
        case "add":
            return f"{edit.raw:+.4g}"
        case _:
            return f"{edit.raw:.4g}"


def push_text(push: float | None) -> SafeString | str:
    """Marked where text tends to fall apart."""
    if push is None:
        return "unknown"
    if push <= STRONG_PUSH:
        return f"{push:.2f}"
    return format_html(
        '<span class="steering-warning" title="Above {} of the residual’s norm, text tends to fall apart.">{} ⚠</span>',
        STRONG_PUSH,
        f"{push:.2f}",
    )
