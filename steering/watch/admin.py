"""The admin of watch rules and their events."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html

from core.read_only_admin import ReadOnlyAdmin
from inference.models import LanguageModel
from steering.errors import InvalidWatchRuleError
from steering.models import PlainVector, WatchEvent, WatchRule
from steering.visibility import visible_vectors
from steering.watch import services as watch_services

_SUBJECT = ("feature", "vector", "bias", "sigmoid")
_LIMIT = ("threshold", "unit", "action", "is_active", "reason")
RULE_FIELDS = ("name", *_SUBJECT, *_LIMIT)


class WatchRuleForm(forms.ModelForm[WatchRule]):
    """Validates a rule as saving it does, so that errors show in the form."""

    unit = forms.ChoiceField(
        required=False,
        choices=[("", "default: × max activation of a feature, raw of a vector"), *WatchRule.Unit.choices],
    )

    class Meta:
        model = WatchRule
        fields = RULE_FIELDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "bias" in self.fields:  # absent for users with view permission only
            self.fields["bias"].required = False
        if self.instance._state.adding:
            self.initial["unit"] = ""

    def clean_bias(self) -> float:
        return self.cleaned_data["bias"] or 0.0

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if not self.errors:
            rule = WatchRule(**{name: data[name] for name in RULE_FIELDS})
            data["unit"] = rule.unit = rule.unit or watch_services.default_unit(rule)
            try:
                watch_services.check_rule(rule=rule)
            except InvalidWatchRuleError as error:
                raise ValidationError({error.param or "feature": error.message}) from error
        return data


class RuleModelFilter(admin.SimpleListFilter):
    """The models of the rules."""

    title = "model"
    parameter_name = "model"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        watched = Q(saes__features__watch_rules__isnull=False) | Q(vector_sets__vectors__watch_rules__isnull=False)
        models = LanguageModel.objects.filter(watched).distinct().order_by("name")
        return [(str(model.pk), model.name) for model in models]

    def queryset(self, request: HttpRequest, queryset: QuerySet[WatchRule]) -> QuerySet[WatchRule]:
        value = self.value()
        return watch_services.rules_of(int(value), queryset) if value and value.isdecimal() else queryset


@admin.register(WatchRule)
class WatchRuleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    form = WatchRuleForm
    empty_words = (
        "No watch rules yet. A rule monitors a feature or a vector in every request, and reports or caps it above a "
        "threshold."
    )
    list_display = ("name", "of_model", "subject", "action", "above", "is_active", "problem", "last_event")
    list_select_related = ("feature__sae__model", "vector__vector_set__model")
    list_filter = ("action", "is_active", RuleModelFilter)
    search_fields = ("name", "feature__label", "vector__vector_set__name", "reason")
    autocomplete_fields = ("feature", "vector")
    readonly_fields = ("above", "problem", "created_by", "created_at")

    def get_fieldsets(self, request: HttpRequest, obj: WatchRule | None = None) -> Any:
        limit = (None, {"fields": (*_LIMIT, *self.readonly_fields) if obj else _LIMIT})
        return ((None, {"fields": ("name",)}), ("Feature or vector", {"fields": _SUBJECT}), limit)

    def get_form(self, request: HttpRequest, obj: WatchRule | None = None, change: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - Django's signature
        form = super().get_form(request, obj, change, **kwargs)
        field = form.base_fields.get("vector")  # absent for users with view permission only
        if isinstance(field, forms.ModelChoiceField):
            may_choose = Q(pk__in=visible_vectors(request.user).order_by().values("pk"))
            used = Q(pk=None if obj is None else obj.vector_id)
            rows = PlainVector.objects.filter(may_choose | used)
            field.queryset = rows.select_related("vector_set").defer("data")
        return form

    @admin.display(description="model")
    def of_model(self, rule: WatchRule) -> str:
        return str(rule.model)

    @admin.display(description="feature or vector")
    def subject(self, rule: WatchRule) -> str:
        return rule.subject

    @admin.display(description="above (value)")
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
        "subject",
        "value_text",
        "threshold_text",
        "num_tokens",
        "logged_request",
    )
    list_filter = ("rule", "action", "model")
    search_fields = ("rule", "label", "vector", "request_id")
    date_hierarchy = "at"

    def get_fields(self, request: HttpRequest, obj: WatchEvent | None = None) -> tuple[str, ...]:
        subject = ("vector",) if obj is not None and obj.vector else ("sae_name", "feature", "label")
        figures = ("threshold_text", "value_text", "num_tokens", "place", "in_prompt")
        return ("at", "rule", "action", "model", *subject, *figures, "profile", "logged_request")

    @admin.display(description="value", ordering="value")
    def value_text(self, event: WatchEvent) -> str:
        return f"{event.value:.4g}"

    @admin.display(description="threshold", ordering="threshold")
    def threshold_text(self, event: WatchEvent) -> str:
        return f"{event.threshold:.4g}"

    @admin.display(description="SAE")
    def sae_name(self, event: WatchEvent) -> str:
        return event.sae

    @admin.display(description="feature or vector")
    def subject(self, event: WatchEvent) -> str:
        return event.subject

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
