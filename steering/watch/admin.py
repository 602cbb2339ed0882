"""The admin of watch rules and their events."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html

from core.read_only_admin import ReadOnlyAdmin
from steering.errors import SteeringError
from steering.models import WatchEvent, WatchRule
from steering.watch import services as watch_services

RULE_FIELDS = ("name", "feature", "threshold", "unit", "action", "is_active", "reason")


class WatchRuleForm(forms.ModelForm[WatchRule]):
    """Validates a rule as saving it does, so that errors show in the form."""

    class Meta:
        model = WatchRule
        fields = RULE_FIELDS

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if not self.errors:
            rule = WatchRule(**{name: data[name] for name in RULE_FIELDS})
            try:
                watch_services.check_rule(rule=rule)
            except SteeringError as error:
                raise ValidationError(error.message) from error
        return data


@admin.register(WatchRule)
class WatchRuleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    form = WatchRuleForm
    empty_words = (
        "No watch rules yet. A rule monitors a feature in every request, and reports or caps it above a threshold."
    )
    list_display = ("name", "of_model", "feature", "action", "above", "is_active", "problem", "last_event")
    list_select_related = ("feature__sae__model",)
    list_filter = ("action", "is_active", "feature__sae__model")
    search_fields = ("name", "feature__label", "reason")
    autocomplete_fields = ("feature",)
    readonly_fields = ("above", "problem", "created_by", "created_at")

    def get_fields(self, request: HttpRequest, obj: WatchRule | None = None) -> Any:
        return (*RULE_FIELDS, *self.readonly_fields) if obj else RULE_FIELDS

    @admin.display(description="model")
    def of_model(self, rule: WatchRule) -> str:
        return str(rule.feature.sae.model)

    @admin.display(description="above (activation)")
    def above(self, rule: WatchRule) -> str:
        return f"{rule.raw_threshold:.4g}"

    @admin.display(description="last event")
    def last_event(self, rule: WatchRule) -> object:
        return WatchEvent.objects.filter(rule=rule.name).values_list("at", flat=True).first()

    def save_model(self, request: HttpRequest, obj: WatchRule, form: Any, change: bool) -> None:  # noqa: FBT001
        watch_services.save_rule(rule=obj, user=_user(request))

    def delete_model(self, request: HttpRequest, obj: WatchRule) -> None:
        watch_services.remove_rule(rule=obj, user=_user(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[WatchRule]) -> None:
        for rule in queryset:
            watch_services.remove_rule(rule=rule, user=_user(request))


@admin.register(WatchEvent)
class WatchEventAdmin(ReadOnlyAdmin):
    """Watch events, read-only."""

    empty_words = "No events yet. A watch rule records one for each request that exceeds its threshold."
    list_display = (
        "at",
        "rule",
        "action",
        "model",
        "feature_label",
        "value_text",
        "threshold_text",
        "num_tokens",
        "logged_request",
    )
    list_filter = ("rule", "action", "model")
    search_fields = ("rule", "label", "request_id")
    date_hierarchy = "at"
    fields = (
        *(
            "at",
            "rule",
            "action",
            "model",
            "sae_name",
            "feature",
            "label",
            "threshold_text",
            "value_text",
            "num_tokens",
        ),
        *("place", "in_prompt", "profile", "logged_request"),
    )

    @admin.display(description="value", ordering="value")
    def value_text(self, event: WatchEvent) -> str:
        return f"{event.value:.4g}"

    @admin.display(description="threshold", ordering="threshold")
    def threshold_text(self, event: WatchEvent) -> str:
        return f"{event.threshold:.4g}"

    @admin.display(description="SAE")
    def sae_name(self, event: WatchEvent) -> str:
        return event.sae

    @admin.display(description="feature")
    def feature_label(self, event: WatchEvent) -> str:
        return f"{event.sae} #{event.feature} {event.label}".rstrip()

    @admin.display(description="request")
    def logged_request(self, event: WatchEvent) -> str:
        """Link to the request by URL name: the request log is a layer above."""
        try:
            url = reverse("admin:openai_api_requestlog_change", args=(event.request_id,))
        except NoReverseMatch:
            return event.request_id
        return format_html('<a href="{}">{}</a>', url, event.request_id)


def _user(request: HttpRequest) -> Any:
    return request.user
