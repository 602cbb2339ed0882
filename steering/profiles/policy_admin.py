"""Policies, the audit trail, and a model's default profile in the admin."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest

from inference.admin import LanguageModelAdmin, LanguageModelForm
from inference.models import LanguageModel
from steering.models import SteeringPolicy
from steering.profiles import lifecycle
from steering.profiles.forms import PolicyForm
from steering.visibility import visible_policies, visible_versions


@admin.register(SteeringPolicy)
class SteeringPolicyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    form = PolicyForm
    empty_words = "No policies yet. A policy applies a profile to every request of a model."
    list_display = ("version", "of_model", "position", "is_active", "reason", "created_by", "created_at")
    list_select_related = ("version__profile__model", "created_by")
    list_filter = ("is_active", "version__profile__model")
    autocomplete_fields = ("version",)
    readonly_fields = ("created_by", "created_at")

    def get_fields(self, request: HttpRequest, obj: SteeringPolicy | None = None) -> Any:
        found = super().get_fields(request, obj)
        return found if obj else [name for name in found if name not in self.readonly_fields]

    def get_queryset(self, request: HttpRequest) -> QuerySet[SteeringPolicy]:
        return visible_policies(request.user, super().get_queryset(request))

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "version":
            kwargs["queryset"] = visible_versions(request.user)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    @admin.display(description="model")
    def of_model(self, policy: SteeringPolicy) -> str:
        return str(policy.version.profile.model)

    def save_model(self, request: HttpRequest, obj: SteeringPolicy, form: Any, change: bool) -> None:  # noqa: FBT001
        lifecycle.save_policy(policy=obj, user=_user(request))

    def delete_model(self, request: HttpRequest, obj: SteeringPolicy) -> None:
        lifecycle.remove_policy(policy=obj, user=_user(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[SteeringPolicy]) -> None:
        for policy in queryset:
            lifecycle.remove_policy(policy=policy, user=_user(request))


class GovernedModelForm(LanguageModelForm):
    """Offers the published profiles of the model, and refuses a default that requests could not name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "default_profile" in self.fields and not self.instance._state.adding:  # absent for viewers
            choices = lifecycle.default_choices(model=self.instance)
            self.fields["default_profile"].widget = forms.Select(choices=choices)

    def clean_default_profile(self) -> str:
        reference = str(self.cleaned_data["default_profile"])
        if self.instance._state.adding and reference:
            raise ValidationError("A new model has no profiles yet. Choose a default later.")
        if reference != self.initial.get("default_profile"):
            lifecycle.check_reference(model=self.instance, reference=reference)
        return reference


class GovernedModelAdmin(LanguageModelAdmin):
    """The models' admin, with a checked and recorded default profile."""

    form = GovernedModelForm

    def save_model(
        self,
        request: HttpRequest,
        obj: LanguageModel,
        form: forms.ModelForm[LanguageModel],
        change: bool,  # noqa: FBT001
    ) -> None:
        super().save_model(request, obj, form, change)
        before = str(form.initial.get("default_profile", ""))
        lifecycle.record_default(model=obj, before=before, user=_user(request))


admin.site.unregister(LanguageModel)
admin.site.register(LanguageModel, GovernedModelAdmin)


def _user(request: HttpRequest) -> Any:
    return request.user
