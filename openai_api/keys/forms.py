"""Admin forms of API keys, with choices for names of models and profiles."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django import forms
from django.utils import timezone

from inference.models import LanguageModel
from openai_api.keys.scopes import Scope
from openai_api.models import ApiKey, LogContent
from steering.models import ProfileVersion

Choice = tuple[str, str]
Choices = list[tuple[str, str | list[Choice]]]
GRACES = (
    (0, "no (the secret may have leaked)"),
    (3600, "for an hour"),
    (86_400, "for a day"),
    (7 * 86_400, "for a week"),
    (30 * 86_400, "for 30 days"),
)


class ApiKeyForm(forms.ModelForm[ApiKey]):
    """Names that no longer exist stay selectable, marked as missing."""

    default_profile = forms.ChoiceField(
        required=False,
        help_text="Used by requests that name no profile. A name without a version means its latest version.",
    )
    allowed_models = forms.MultipleChoiceField(
        required=False, widget=forms.CheckboxSelectMultiple, help_text="None selected: all."
    )
    allowed_profiles = forms.MultipleChoiceField(
        required=False, widget=forms.CheckboxSelectMultiple, help_text="None selected: all."
    )
    scopes = forms.MultipleChoiceField(
        required=False,
        choices=Scope.choices,
        widget=forms.CheckboxSelectMultiple,
        help_text="What the key can access. None selected: all of /v1, nothing of /api.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        key = self.instance
        models = [(name, name) for name in LanguageModel.objects.values_list("name", flat=True)]
        profiles = published_profiles()
        names = [(name, f"{name} ({of})") for name, of in profiles.items()]
        self._offer("allowed_models", models, key.allowed_models)
        self._offer("allowed_profiles", names, key.allowed_profiles)
        if "log_content" in self.fields:
            field = self.fields["log_content"]
            assert isinstance(field, forms.ChoiceField)
            field.choices = [("", "server default"), *LogContent.choices]
        if "default_profile" in self.fields:
            field = self.fields["default_profile"]
            assert isinstance(field, forms.ChoiceField)
            field.choices = profile_choices(key.default_profile)

    def clean(self) -> dict[str, Any] | None:
        """Refuse a default profile that the key itself may not use: every request would fail."""
        data = super().clean() or {}
        name = str(data.get("default_profile", "")).partition("@")[0]
        allowed = data.get("allowed_profiles")
        if name and allowed and name not in allowed:
            self.add_error("default_profile", f"The key can't use {name}. Allow it, or choose another default.")
        return data

    def clean_expires_at(self) -> Any:
        at = self.cleaned_data["expires_at"]
        if at is not None and "expires_at" in self.changed_data and at <= timezone.now():
            raise forms.ValidationError("Must be in the future. To disable a key now, revoke it.")
        return at

    def _offer(self, field: str, choices: list[Choice], chosen: Iterable[str]) -> None:
        """Set the choices of a field; read-only forms lack the field."""
        if field in self.fields:
            known = {value for value, _ in choices}
            gone = [(value, f"{value} (deleted)") for value in chosen if value and value not in known]
            self.fields[field].choices = [*choices, *gone]  # type: ignore[attr-defined]  # both kinds have choices


class RotateForm(forms.Form):
    grace_s = forms.TypedChoiceField(
        label="Old secret stays valid", choices=GRACES, coerce=int, initial=86_400, widget=forms.RadioSelect
    )

    @property
    def grace(self) -> timedelta:
        return timedelta(seconds=self.cleaned_data["grace_s"])


class RevokeForm(forms.Form):
    reason = forms.CharField(
        max_length=300,
        widget=forms.TextInput(attrs={"size": 60}),
        help_text="Stored with the key and in the audit trail.",
    )


def published_profiles() -> dict[str, str]:
    """Return the models of each published profile in use, by name."""
    rows = ProfileVersion.objects.filter(profile__archived_at=None).order_by("profile__name", "profile__model__name")
    found: dict[str, list[str]] = {}
    for name, model in rows.values_list("profile__name", "profile__model__name").distinct():
        found.setdefault(name, []).append(model)
    return {name: ", ".join(models) for name, models in found.items()}


def profile_choices(current: str = "") -> Choices:
    """Return "none", then each published name with its versions; ``current`` stays a choice in any case."""
    versions: dict[str, dict[int, set[str]]] = {}
    rows = ProfileVersion.objects.filter(profile__archived_at__isnull=True)
    for name, number, model in rows.values_list("profile__name", "number", "profile__model__name"):
        versions.setdefault(name, {}).setdefault(number, set()).add(model)
    choices: Choices = [("", "model default, or none")]
    known = {""}
    for name, numbers in sorted(versions.items()):
        models = ", ".join(sorted(set().union(*numbers.values())))
        named = [
            (name, f"{name} (latest)"),
            *((f"{name}@{number}", f"{name}@{number}") for number in sorted(numbers, reverse=True)),
        ]
        choices.append((f"{name} ({models})", named))
        known |= {value for value, _ in named}
    if current not in known:
        choices.append((current, f"{current} (unavailable: not published or archived)"))
    return choices
