"""The form "Steer with this" of a feature page, and that of a text whose features are shown."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ValidationError
from django.db.models import QuerySet

from steering.features.services import default_unit
from steering.models import SAE, Feature, FeatureEdit, SteeringProfile
from steering.spec.units import DEFAULT_STRENGTH, MAX_STRENGTH, Unit

MAX_TESTED = 2_000
_OPERATIONS = ("add", "clamp", "scale", "ablate", "at_least", "at_most")


class SteerForm(forms.Form):
    """Selects one of the user's drafts, or names a new profile."""

    profile = forms.ModelChoiceField(
        SteeringProfile.objects.none(), required=False, empty_label="new profile", label="Draft"
    )
    new_name = forms.SlugField(max_length=100, required=False, label="Name of the new profile")
    operation = forms.ChoiceField(choices=())
    strength = forms.FloatField(
        initial=DEFAULT_STRENGTH,
        min_value=-MAX_STRENGTH,
        max_value=MAX_STRENGTH,
        widget=forms.NumberInput(attrs={"step": "any"}),
    )
    unit = forms.ChoiceField(choices=(), required=False)

    def __init__(self, feature: Feature, user: User | AnonymousUser, data: Any = None) -> None:
        super().__init__(data)
        self._feature = feature
        self.may_begin = user.has_perm("steering.add_steeringprofile")
        may_change = user.has_perm("steering.change_steeringprofile")
        drafts = _drafts(feature, user) if may_change else SteeringProfile.objects.none()
        self.may_steer = self.may_begin or (may_change and drafts.exists())
        profile = self.fields["profile"]
        assert isinstance(profile, forms.ModelChoiceField)
        profile.queryset = drafts
        labels = dict(FeatureEdit.Operation.choices)
        operation = self.fields["operation"]
        assert isinstance(operation, forms.ChoiceField)
        operation.choices = [(name, labels[name]) for name in _OPERATIONS]
        unit = self.fields["unit"]
        assert isinstance(unit, forms.ChoiceField)
        unit.choices = _known_units(feature)
        unit.help_text = "; ".join(words for name, _ in unit.choices if (words := feature.unit_words(name)))
        unit.initial = default_unit(feature)
        self.fields["strength"].help_text = 'For "scale by", a factor'
        effect = getattr(feature, "effect", None)
        if effect is not None and effect.strength:
            calibrated = effect.in_max_act or effect.strength
            self.fields["strength"].initial = float(f"{calibrated:.3g}")
            self.fields["strength"].help_text += f"; {calibrated:.3g} {_label(unit.initial)} is the calibrated strength"

    def clean_unit(self) -> str:
        return self.cleaned_data["unit"] or default_unit(self._feature)

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if self.errors or data["profile"] is not None:
            return data
        if not self.may_begin:
            raise ValidationError({"profile": "You don't have permission to add profiles. Choose an existing draft."})
        if not data["new_name"]:
            raise ValidationError({"new_name": "Enter a name for the new profile."})
        taken = SteeringProfile.objects.filter(model_id=self._feature.sae.model_id, name=data["new_name"])
        if taken.exists():
            raise ValidationError({"new_name": f"The model already has a profile {data['new_name']}."})
        return data


class TextForm(forms.Form):
    """A text, and the SAE whose features are shown."""

    sae = forms.ModelChoiceField(SAE.objects.order_by("name"), empty_label=None, label="SAE")
    text = forms.CharField(max_length=MAX_TESTED, widget=forms.Textarea(attrs={"rows": 3, "cols": 80}))


def _known_units(feature: Feature) -> list[tuple[str, str]]:
    return [choice for choice in FeatureEdit.Unit.choices if choice[0] == "raw" or feature.unit_words(choice[0])]


def _label(unit: Unit) -> str:
    return str(FeatureEdit.Unit(unit).label)


def _drafts(feature: Feature, user: User | AnonymousUser) -> QuerySet[SteeringProfile]:
    """Return the drafts of the model that the user owns; all drafts for a superuser."""
    drafts = SteeringProfile.objects.filter(model_id=feature.sae.model_id, archived_at__isnull=True)
    return drafts if user.is_superuser else drafts.filter(owner_id=user.pk)
