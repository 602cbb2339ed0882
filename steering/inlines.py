"""The edits of a profile's draft, with what their strengths come to."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.forms import ModelChoiceField
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from steering.drafts import edit_of
from steering.edit_forms import FeatureEditForm, ModelsOwnSelect, VectorEditForm
from steering.models import Feature, FeatureEdit, PlainVector, SteeringProfile
from steering.spec.edit import EditSpec
from steering.spec.errors import InvalidSpecError
from steering.spec.units import STRONG_PUSH
from steering.spec.wording import describe_edit
from steering.visibility import visible_vectors


class _EditInline(admin.StackedInline):  # type: ignore[type-arg]  # it takes none at run time
    """One card per edit, in the order in which they were added."""

    model = FeatureEdit
    readonly_fields = ("words", "coefficient", "push")
    extra = 0

    class Media:
        js = ("steering/edits.js",)

    @admin.display(description="in words")
    def words(self, edit: FeatureEdit) -> str:
        """With all its conditions, as it was saved."""
        if edit._state.adding:
            return "Save to see what it comes to."
        try:
            return describe_edit(edit_of(edit))
        except InvalidSpecError:
            return "–"

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

    def _choose_among(self, field: Any, name: str, rows: QuerySet[Any], language_model: int) -> None:
        """Lets the field's search find rows of the profile's model only."""
        field.queryset = rows
        select = ModelsOwnSelect(FeatureEdit._meta.get_field(name), self.admin_site)
        select.language_model = language_model
        select.choices = field.widget.choices
        field.widget.widget = select
        field.widget.can_change_related = False


_OUTCOME = ("words", ("coefficient", "push"))
_AMOUNT = ("operation", ("strength", "unit", "lower"), "phase")


class FeatureEditInline(_EditInline):
    form = FeatureEditForm
    verbose_name = "feature edit"
    verbose_name_plural = "feature edits"
    fieldsets = (
        (None, {"fields": ("feature", *_AMOUNT, *_OUTCOME)}),
        (
            "Conditions",
            {
                "classes": ("collapse",),
                "fields": (
                    "scope",
                    ("after", "first", "ranges"),
                    ("only_if_active", "special_tokens", "sink_tokens"),
                    ("gate_feature", "gate_above", "gate_unit"),
                ),
            },
        ),
    )
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
                self._choose_among(field, name, Feature.objects.filter(sae__model_id=obj.model_id), obj.model_id)
        return formset


class VectorEditInline(_EditInline):
    form = VectorEditForm
    verbose_name = "vector edit"
    verbose_name_plural = "vector edits (plain directions, and keeping the norm)"
    fieldsets = (
        (None, {"fields": ("plain_vector", *_AMOUNT, ("norm_layer", "norm_site"), *_OUTCOME)}),
        (
            "Conditions, and numbers of one's own",
            {
                "classes": ("collapse",),
                "fields": ("scope", ("after", "first", "ranges"), ("special_tokens", "sink_tokens"), "vector"),
            },
        ),
    )
    autocomplete_fields = ("plain_vector",)

    def get_formset(self, request: HttpRequest, obj: SteeringProfile | None = None, **kwargs: Any) -> Any:
        formset = super().get_formset(request, obj, **kwargs)
        fields = formset.form.base_fields
        if "unit" in fields:
            fields["unit"].initial = FeatureEdit.Unit.RAW
        field = fields.get("plain_vector")
        if isinstance(field, ModelChoiceField) and obj is not None:
            rows = PlainVector.objects.filter(vector_set__model_id=obj.model_id).select_related("vector_set")
            used = Q(pk__in=obj.edits.values("plain_vector"))  # in a draft that is shared
            rows = rows.filter(used | Q(pk__in=visible_vectors(request.user).order_by().values("pk")))
            self._choose_among(field, "plain_vector", rows.defer("data"), obj.model_id)
        return formset

    def get_queryset(self, request: HttpRequest) -> QuerySet[FeatureEdit]:
        rows = super().get_queryset(request).filter(feature__isnull=True)
        return rows.select_related("profile", "plain_vector__vector_set")


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
