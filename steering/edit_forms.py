"""Forms of the edits of a profile's draft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import ValidationError

from steering import edit_texts
from steering.models import SAE, FeatureEdit
from steering.spec.edit import OPERATIONS, VECTOR_OPERATIONS
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import MAX_LAYER, parse_edits
from steering.spec.units import DEFAULT_STRENGTH, MAX_STRENGTH

KEEP_NORM = FeatureEdit.Operation.NORM_PRESERVING
CONDITIONS = ("scope", "after", "first", "only_if_active", "gate_feature", "gate_above", "gate_unit", "special_tokens",
              "ranges", "sink_tokens")  # fmt: skip


class ModelsOwnSelect(AutocompleteSelect):
    """Searches rows of one model only (its primary key goes along as ``language_model``)."""

    language_model: int | None = None

    def get_url(self) -> str:
        return f"{super().get_url()}?language_model={self.language_model or 0}"

    def optgroups(self, name: str, value: Any, attrs: Any = None) -> Any:
        """Django would look up what a forged form holds; the field refuses it all the same."""
        return super().optgroups(name, [one for one in value if str(one).isdecimal()], attrs)


class FeatureEditForm(forms.ModelForm[FeatureEdit]):
    operations: tuple[str, ...] = tuple(name for name in OPERATIONS if name != "norm_preserving")
    strength = forms.FloatField(
        initial=DEFAULT_STRENGTH,
        min_value=-MAX_STRENGTH,
        max_value=MAX_STRENGTH,
        widget=forms.NumberInput(attrs={"step": "any", "class": "strength"}),
    )

    class Meta:
        model = FeatureEdit
        fields = ("feature", "operation", "strength", "lower", "unit", "phase", *CONDITIONS)
        widgets = {"ranges": forms.TextInput}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "operation" in self.fields:  # absent for users who may only look
            labels = dict(FeatureEdit.Operation.choices)
            choices = [(name, labels[name]) for name in OPERATIONS if name in self.operations]
            self.fields["operation"].widget.choices = choices
        for name in {"gate_unit", "scope"} & self.fields.keys():
            self.fields[name].required = False
        for name, texts in _EXPLAINED.items():
            if name in self.fields:
                self.fields[name].widget.attrs["data-explain"] = json.dumps(texts)

    def clean_scope(self) -> str:
        return self.cleaned_data["scope"] or FeatureEdit.Scope.EVERYTHING

    def clean_gate_unit(self) -> str:
        return self.cleaned_data["gate_unit"] or FeatureEdit.GateUnit.MAX_ACT


class VectorEditForm(FeatureEditForm):
    """For registered vectors, numbers of one's own, and whole sites."""

    operations = (*VECTOR_OPERATIONS, "norm_preserving")
    norm_layer = forms.IntegerField(
        label="layer", required=False, min_value=0, max_value=MAX_LAYER, help_text="Of “keep the norm”."
    )
    norm_site = forms.ChoiceField(label="site", required=False, choices=SAE.Site.choices, initial=SAE.Site.RESID_POST)

    class Meta:
        model = FeatureEdit
        fields = ("plain_vector", "vector", "operation", "strength", "lower", "unit", "phase", "scope", "after",
                  "first", "special_tokens", "ranges", "sink_tokens")  # fmt: skip
        widgets = {"vector": forms.Textarea(attrs={"rows": 2, "cols": 50}), "ranges": forms.TextInput}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "operation" in self.fields:
            self.fields["operation"].required = False
        if self.instance.operation == KEEP_NORM and isinstance(self.instance.vector, dict):
            place = self.instance.vector
            site = place.get("site", SAE.Site.RESID_POST)
            self.initial.update(norm_layer=place.get("layer"), norm_site=site, vector=None)

    def clean_operation(self) -> str:
        return self.cleaned_data["operation"] or FeatureEdit.Operation.ADD

    def clean(self) -> dict[str, Any]:
        """Everything about the vector but its fit to the model, which is checked when it is published."""
        cleaned = super().clean() or self.cleaned_data
        if "operation" in cleaned and "vector" in cleaned and "plain_vector" in cleaned:
            self._clean_target(cleaned)
        return cleaned

    def _clean_target(self, cleaned: dict[str, Any]) -> None:
        registered, own = cleaned["plain_vector"], cleaned["vector"]
        if cleaned["operation"] == KEEP_NORM:
            if registered is not None:
                raise ValidationError({"plain_vector": "“keep the norm” takes a layer and a site, no vector."})
            cleaned["vector"] = self._site(own, cleaned)
        elif registered is not None and own is not None:
            raise ValidationError({"vector": "Choose a registered vector, or give numbers, not both."})
        elif registered is None and own is None:
            raise ValidationError({"plain_vector": "Choose a registered vector, or give numbers of your own."})
        elif own is not None:
            _check_edit({"vector": own, "operation": cleaned["operation"]})

    def _site(self, own: object, cleaned: Mapping[str, Any]) -> object:
        if own is None and cleaned.get("norm_layer") is None:
            raise ValidationError({"norm_layer": "“keep the norm” needs a layer."})
        site = own or {"layer": cleaned["norm_layer"], "site": cleaned.get("norm_site") or SAE.Site.RESID_POST}
        _check_edit({"site": site, "operation": KEEP_NORM})
        return site


def _check_edit(edit: dict[str, Any]) -> None:
    try:
        parse_edits([edit | {"unit": "raw"}])
    except InvalidSpecError as error:
        texts = [str(problem).removeprefix("edits[0].") for problem in error.problems]
        raise ValidationError({"vector": texts}) from error


_EXPLAINED = {
    "operation": edit_texts.OPERATIONS,
    "phase": edit_texts.PHASES,
    "scope": edit_texts.SCOPES,
    "unit": edit_texts.UNITS,
}
