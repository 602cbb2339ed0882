"""The edits of a profile's draft, with their raw strengths and relative sizes."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.forms import ModelChoiceField
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from steering.models import SAE, Feature, FeatureEdit, PlainVector, SteeringProfile
from steering.profiles.display import coefficient_text, push_text
from steering.profiles.drafts import edit_of, sae_identity
from steering.spec.edit import OPERATIONS, SITE_OPERATIONS, VECTOR_OPERATIONS, EditSpec, SiteTarget
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import MAX_LAYER, parse_edits
from steering.spec.rendering import edit_to_json
from steering.spec.units import DEFAULT_STRENGTH, MAX_STRENGTH
from steering.spec.wording import describe_edit
from steering.visibility import visible_vectors

OPERATION_HELP = {
    "add": (
        "Adds the feature's or vector's direction, scaled by the strength. The usual way to strengthen or weaken a "
        "concept."
    ),
    "clamp": "Sets the feature to the strength on every token.",
    "scale": "Multiplies the feature's activation by the strength: 0 removes it, 1 changes nothing, 2 doubles it.",
    "ablate": "Sets the feature to 0. The strength is not used.",
    "at_least": "Raises the feature to the strength where it is lower.",
    "at_most": "Lowers the feature to the strength where it is higher.",
    "orthogonal": "Multiplies the residual's component along the direction by the strength: 0 removes it.",
    "projection_cap": "Limits the residual's component along the direction to between the lower end and the strength.",
    "reconstruct": (
        "Replaces the residual by what the SAE decodes from its features, without the SAE's error. Shows what the "
        "model loses when it has only what the SAE sees. Edits of the same SAE's features act on what is decoded."
    ),
    "norm_preserving": "Restores the residual's original norm after all other edits at the site.",
}
PHASE_HELP = {
    "both": "On prompt tokens and generated tokens.",
    "prompt": "Only on prompt tokens.",
    "from_last_prompt_token": "From the prompt's last token on, where the first answer token is sampled: "
    "steers the whole answer, but not the prompt before it.",
    "generation": "Only on generated tokens. The first one is sampled at the prompt's last token, so it is not "
    "steered.",
}
SCOPE_HELP = {
    "everything": "On all tokens of the phase.",
    "thinking": "Only while the model is thinking, before it answers. Windows count tokens of this segment. "
    "Phase: generation.",
    "answer": "Only on the answer, not on thinking or tool calls. Windows count tokens of this segment. Phase: "
    "generation.",
    "outside_calls": "Everywhere except in tool calls, so that arguments are not steered.",
}
UNIT_HELP = {
    "max_act": "In multiples of the feature's max activation: 1 is its largest value on the corpus.",
    "p99": "In multiples of the 99th percentile of the feature's activations above 0: steadier than one maximum.",
    "p999": "In multiples of the 99.9th percentile of the feature's activations above 0.",
    "raw": "The raw value.",
    "resid_norm": "As a fraction of the mean residual norm, independent of the feature.",
}


KEEP_NORM = FeatureEdit.Operation.NORM_PRESERVING
RECONSTRUCT = FeatureEdit.Operation.RECONSTRUCT
GATE = ("gate_feature", "gate_vector", "gate_measure", "gate_side", "gate_above", "gate_unit", "gate_scope")
CONDITIONS = ("scope", "after", "first", "only_if_active", *GATE, "special_tokens", "ranges", "sink_tokens")
_GATE_ROWS = (("gate_feature", "gate_vector", "gate_measure"), ("gate_side", "gate_above", "gate_unit", "gate_scope"))
_OPTIONAL = {"scope", "gate_measure", "gate_side", "gate_unit", "gate_scope"}  # absent in forms of scripts


class ModelsOwnSelect(AutocompleteSelect):
    """An autocomplete for rows of one language model, whose primary key is sent as ``language_model``."""

    language_model: int | None = None

    def get_url(self) -> str:
        return f"{super().get_url()}?language_model={self.language_model or 0}"

    def optgroups(self, name: str, value: Any, attrs: Any = None) -> Any:
        """Skip values that are not keys: Django would look up the content of a forged form. The field refuses them."""
        return super().optgroups(name, [key for key in value if str(key).isdecimal()], attrs)


class FeatureEditForm(forms.ModelForm[FeatureEdit]):
    operations: tuple[str, ...] = tuple(name for name in OPERATIONS if name not in SITE_OPERATIONS)
    strength = forms.FloatField(
        initial=DEFAULT_STRENGTH,
        min_value=-MAX_STRENGTH,
        max_value=MAX_STRENGTH,
        widget=forms.NumberInput(attrs={"step": "any", "class": "strength"}),
    )

    class Meta:
        model = FeatureEdit
        fields = ("feature", "operation", "strength", "lower", "unit", "phase", *CONDITIONS)
        widgets = {"ranges": forms.TextInput, "gate_vector": forms.Textarea(attrs={"rows": 1, "cols": 40})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "operation" in self.fields:  # absent for users with view permission only
            labels = dict(FeatureEdit.Operation.choices)
            choices = [(name, labels[name]) for name in OPERATIONS if name in self.operations]
            self.fields["operation"].widget.choices = choices
        for name in _OPTIONAL & self.fields.keys():
            self.fields[name].required = False
        for name, texts in _EXPLAINED.items():
            if name in self.fields:
                self.fields[name].widget.attrs["data-explain"] = json.dumps(texts)

    def clean_scope(self) -> str:
        return self.cleaned_data["scope"] or FeatureEdit.Scope.EVERYTHING

    def clean_gate_measure(self) -> str:
        return self.cleaned_data["gate_measure"] or FeatureEdit.GateMeasure.PROJECTION

    def clean_gate_side(self) -> str:
        return self.cleaned_data["gate_side"] or FeatureEdit.GateSide.ABOVE

    def clean_gate_unit(self) -> str:
        """Return the unit. The field's default is one of features, which vectors do not have."""
        unit = self.cleaned_data["gate_unit"] or FeatureEdit.GateUnit.MAX_ACT
        is_vectors = self.cleaned_data.get("gate_vector") is not None
        return FeatureEdit.GateUnit.RAW if is_vectors and unit == FeatureEdit.GateUnit.MAX_ACT else unit

    def clean_gate_scope(self) -> str:
        return self.cleaned_data["gate_scope"] or FeatureEdit.GateScope.TOKEN


class VectorEditForm(FeatureEditForm):
    """The form of edits with registered vectors, custom values, and whole sites."""

    operations = (*VECTOR_OPERATIONS, *SITE_OPERATIONS)
    sae = forms.ModelChoiceField(
        SAE.objects.none(),
        label="SAE",
        required=False,
        help_text='Only for "replace by the reconstruction". Acts at the SAE\'s site.',
    )
    norm_layer = forms.IntegerField(
        label="layer", required=False, min_value=0, max_value=MAX_LAYER, help_text='Only for "keep the norm".'
    )
    norm_site = forms.ChoiceField(label="site", required=False, choices=SAE.Site.choices, initial=SAE.Site.RESID_POST)

    class Meta:
        model = FeatureEdit
        fields = ("plain_vector", "vector", "operation", "strength", "lower", "unit", "phase",
                  *(name for name in CONDITIONS if name != "only_if_active"))  # fmt: skip
        widgets = {**FeatureEditForm.Meta.widgets, "vector": forms.Textarea(attrs={"rows": 2, "cols": 50})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "operation" in self.fields:
            self.fields["operation"].required = False
        if self.instance.operation == KEEP_NORM and isinstance(self.instance.vector, dict):
            place = self.instance.vector
            site = place.get("site", SAE.Site.RESID_POST)
            self.initial.update(norm_layer=place.get("layer"), norm_site=site, vector=None)
        if self.instance.operation == RECONSTRUCT:
            self._show_sae()

    def _show_sae(self) -> None:
        """Choose the SAE of the saved edit. An SAE that is no longer registered stays in the custom values."""
        field, site = self.fields["sae"], self.instance.vector
        assert isinstance(field, ModelChoiceField)
        for sae in field.queryset or ():
            if _without_name(_reconstruction_site(sae)) == _without_name(site):
                self.initial.update(sae=sae.pk, vector=None)

    def clean_operation(self) -> str:
        return self.cleaned_data["operation"] or FeatureEdit.Operation.ADD

    def clean(self) -> dict[str, Any]:
        """Validate the vector, except for its fit to the model, which publishing checks."""
        cleaned = super().clean() or self.cleaned_data
        if "operation" in cleaned and "vector" in cleaned and "plain_vector" in cleaned:
            self._clean_target(cleaned)
        return cleaned

    def _clean_target(self, cleaned: dict[str, Any]) -> None:
        registered, own = cleaned["plain_vector"], cleaned["vector"]
        if cleaned["operation"] == RECONSTRUCT:
            if registered is not None:
                message = '"replace by the reconstruction" needs an SAE, not a vector.'
                raise ValidationError({"plain_vector": message})
            cleaned["vector"] = self._reconstructed_site(own, cleaned.get("sae"))
        elif cleaned["operation"] == KEEP_NORM:
            if registered is not None:
                raise ValidationError({"plain_vector": '"keep the norm" needs a layer and a site, not a vector.'})
            cleaned["vector"] = self._site(own, cleaned)
        elif registered is not None and own is not None:
            raise ValidationError({"vector": "Choose a vector or enter custom values, not both."})
        elif registered is None and own is None:
            raise ValidationError({"plain_vector": "Choose a vector or enter custom values."})
        elif own is not None:
            _check_edit({"vector": own, "operation": cleaned["operation"]})

    def _reconstructed_site(self, own: object, sae: SAE | None) -> object:
        if sae is None and own is None:
            raise ValidationError({"sae": '"replace by the reconstruction" needs an SAE.'})
        if sae is not None and own is not None:
            raise ValidationError({"sae": "Choose an SAE or enter custom values, not both."})
        site = own if sae is None else _reconstruction_site(sae)
        _check_edit({"site": site, "operation": RECONSTRUCT})
        return site

    def _site(self, own: object, cleaned: Mapping[str, Any]) -> object:
        if own is None and cleaned.get("norm_layer") is None:
            raise ValidationError({"norm_layer": '"keep the norm" needs a layer.'})
        site = own or {"layer": cleaned["norm_layer"], "site": cleaned.get("norm_site") or SAE.Site.RESID_POST}
        _check_edit({"site": site, "operation": KEEP_NORM})
        return site


def _reconstruction_site(sae: SAE) -> dict[str, Any]:
    """Return the target of an edit that replaces the residual by the SAE's reconstruction, as in a version's JSON."""
    identity = sae_identity(sae)
    edit = edit_to_json(EditSpec(SiteTarget(identity.site, sae=identity), "reconstruct"))
    site: dict[str, Any] = edit["site"]
    return site


def _without_name(site: object) -> object:
    """Return the target without the SAE's name, which may have been changed since."""
    sae = site.get("sae") if isinstance(site, dict) else None
    return {**site, "sae": {**sae, "name": ""}} if isinstance(site, dict) and isinstance(sae, dict) else site


def _check_edit(edit: dict[str, Any]) -> None:
    try:
        parse_edits([edit | {"unit": "raw"}])
    except InvalidSpecError as error:
        texts = [str(problem).removeprefix("edits[0].") for problem in error.problems]
        raise ValidationError({"vector": texts}) from error


_EXPLAINED = {
    "operation": OPERATION_HELP,
    "phase": PHASE_HELP,
    "scope": SCOPE_HELP,
    "unit": UNIT_HELP,
}


class _EditInline(admin.StackedInline):  # type: ignore[type-arg]  # it takes none at run time
    """One card per edit, in the order in which they were added."""

    model = FeatureEdit
    readonly_fields = ("words", "coefficient", "push")
    extra = 0

    class Media:
        js = ("steering/edits.js",)

    @admin.display(description="description")
    def words(self, edit: FeatureEdit) -> str:
        """Describe the saved edit with all its conditions."""
        if edit._state.adding:
            return "Save to see a description."
        try:
            return describe_edit(edit_of(edit))
        except InvalidSpecError:
            return "–"

    @admin.display(description="raw strength")
    def coefficient(self, edit: FeatureEdit) -> SafeString | str:
        """Return the raw strength, or the reason why it is unknown."""
        if edit._state.adding:
            return "–"
        try:
            return coefficient_text(edit_of(edit))
        except InvalidSpecError as error:
            return format_html('<span class="steering-warning">{}</span>', error.problems[0].message)

    @admin.display(description="relative size (× residual norm)")
    def push(self, edit: FeatureEdit) -> SafeString | str:
        """Return the largest step as a fraction of the residual's mean norm."""
        if edit._state.adding:
            return "–"
        try:
            return push_text(edit_of(edit).push)
        except InvalidSpecError:
            return "–"

    def _choose_feature(self, fields: Mapping[str, Any], name: str, profile: SteeringProfile | None) -> None:
        field = fields.get(name)  # absent for users with view permission only
        if isinstance(field, ModelChoiceField) and profile is not None:
            field.required = name == "feature"
            features = Feature.objects.filter(sae__model_id=profile.model_id)
            self._choose_among(field, name, features, profile.model_id)

    def _choose_among(self, field: Any, name: str, rows: QuerySet[Any], language_model: int) -> None:
        """Restrict the field's search to rows of the profile's model."""
        field.queryset = rows
        select = ModelsOwnSelect(FeatureEdit._meta.get_field(name), self.admin_site)
        select.language_model = language_model
        select.choices = field.widget.choices
        field.widget.widget = select
        field.widget.can_change_related = False


_AMOUNT = (("strength", "unit", "lower", "phase"), "words", ("coefficient", "push"))


class FeatureEditInline(_EditInline):
    form = FeatureEditForm
    verbose_name = "feature edit"
    verbose_name_plural = "feature edits"
    fieldsets = (
        (None, {"fields": (("feature", "operation"), *_AMOUNT)}),
        (
            "Conditions",
            {
                "classes": ("collapse",),
                "fields": (
                    "scope",
                    ("after", "first", "ranges"),
                    ("only_if_active", "special_tokens", "sink_tokens"),
                    *_GATE_ROWS,
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
            self._choose_feature(formset.form.base_fields, name, obj)
        return formset


class VectorEditInline(_EditInline):
    form = VectorEditForm
    verbose_name = "vector or site edit"
    verbose_name_plural = "vector and site edits"
    fieldsets = (
        (None, {"fields": (("operation", "plain_vector", "sae"), ("norm_layer", "norm_site"), *_AMOUNT)}),
        (
            "Conditions and custom values",
            {
                "classes": ("collapse",),
                "fields": (
                    "scope",
                    ("after", "first", "ranges"),
                    ("special_tokens", "sink_tokens"),
                    *_GATE_ROWS,
                    "vector",
                ),
            },
        ),
    )
    autocomplete_fields = ("plain_vector", "gate_feature")

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
        self._choose_feature(fields, "gate_feature", obj)
        if obj is not None:
            saes: Any = copy.deepcopy(fields["sae"])  # a declared field is shared by all forms of the class
            saes.queryset = SAE.objects.filter(model_id=obj.model_id)
            fields["sae"] = saes
        return formset

    def get_queryset(self, request: HttpRequest) -> QuerySet[FeatureEdit]:
        rows = super().get_queryset(request).filter(feature__isnull=True)
        return rows.select_related("profile", "plain_vector__vector_set", "gate_feature__sae")
