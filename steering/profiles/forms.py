"""Forms of profiles' and policies' admin pages."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from steering.errors import SteeringError
from steering.models import ProfileVersion, SteeringPolicy, SteeringProfile
from steering.profiles.lifecycle import check_can_be_policy


class PublishForm(forms.Form):
    note = forms.CharField(
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60}),
        help_text="What changed, and why. Stored with the version.",
    )


class RollBackForm(PublishForm):
    replaces_draft = forms.BooleanField(
        required=False,
        label="Replace the draft too",
        help_text="Otherwise the draft is unchanged, and publishing it undoes the rollback.",
    )

    def __init__(self, *args: Any, has_changes: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["replaces_draft"]
        field.initial = not has_changes
        if has_changes:
            field.help_text = "The draft has unpublished changes. Replacing it discards them."


class ReviewForm(forms.Form):
    note = forms.CharField(
        max_length=2000,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60}),
        help_text="Instructions for the reviewer, or the findings of the review. Required to reject.",
    )


class CompareForm(forms.Form):
    """Selects two versions of one profile, by default the latest two."""

    before = forms.ModelChoiceField(ProfileVersion.objects.none(), empty_label=None)
    after = forms.ModelChoiceField(ProfileVersion.objects.none(), empty_label=None)

    def __init__(self, profile: SteeringProfile, data: Any) -> None:
        versions = ProfileVersion.objects.filter(profile=profile).select_related("profile").order_by("-number")
        newest = list(versions[:2])
        if newest:
            data = {"before": newest[-1].pk, "after": newest[0].pk} | {name: data[name] for name in data}
        super().__init__(data)
        for name in ("before", "after"):
            field = self.fields[name]
            assert isinstance(field, forms.ModelChoiceField)
            field.queryset = versions


class DuplicateForm(forms.Form):
    name = forms.SlugField(max_length=100, help_text='The value of "profile" in requests.')

    def __init__(self, profile: SteeringProfile, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._profile = profile

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"])
        if SteeringProfile.objects.filter(model_id=self._profile.model_id, name=name).exists():
            raise ValidationError(f"The model {self._profile.model} already has a profile {name}.")
        return name


class PolicyForm(forms.ModelForm[SteeringPolicy]):
    """Shows in the form why a version cannot be a policy."""

    class Meta:
        model = SteeringPolicy
        fields = ("version", "position", "is_active", "reason")

    def clean_version(self) -> ProfileVersion:
        version: ProfileVersion = self.cleaned_data["version"]
        try:
            check_can_be_policy(version=version)
        except SteeringError as error:
            raise ValidationError(error.message) from error
        return version
