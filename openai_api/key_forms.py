"""The form of an API key in the admin: its default profile is chosen among those that are published."""

from __future__ import annotations

from typing import Any

from django import forms

from openai_api.models import ApiKey
from steering.models import ProfileVersion

Choices = list[tuple[str, str | list[tuple[str, str]]]]


class ApiKeyForm(forms.ModelForm[ApiKey]):
    default_profile = forms.ChoiceField(
        required=False, help_text="What requests get that name no profile. A name alone is its newest version."
    )

    class Meta:
        model = ApiKey
        fields = ("default_profile",)  # the admin says which others

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "default_profile" in self.fields:  # absent for users who may only look
            field = self.fields["default_profile"]
            assert isinstance(field, forms.ChoiceField)
            field.choices = profile_choices(self.instance.default_profile)


def profile_choices(current: str = "") -> Choices:
    """None, then each published name with its versions; ``current`` stays a choice where it is none of them."""
    versions: dict[str, dict[int, set[str]]] = {}
    rows = ProfileVersion.objects.filter(profile__archived_at__isnull=True)
    for name, number, model in rows.values_list("profile__name", "number", "profile__model__name"):
        versions.setdefault(name, {}).setdefault(number, set()).add(model)
    choices: Choices = [("", "the model's own default, or none")]
    known = {""}
    for name, numbers in sorted(versions.items()):
        models = ", ".join(sorted(set().union(*numbers.values())))
        named = [
            (name, f"{name}, the newest"),
            *((f"{name}@{n}", f"{name}@{n}") for n in sorted(numbers, reverse=True)),
        ]
        choices.append((f"{name} ({models})", named))
        known |= {value for value, _ in named}
    if current not in known:
        choices.append((current, f"{current} (cannot be used: not published, or archived)"))
    return choices
