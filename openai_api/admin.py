"""API keys and the request log in the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.views.decorators.cache import never_cache

from openai_api.key_forms import ApiKeyForm
from openai_api.key_visibility import SEE_ALL_KEYS, visible_days, visible_keys
from openai_api.log_filters import EndpointFilter, ModelFilter, OutcomeFilter, ProfileFilter
from openai_api.log_pages import conversation, pretty_json, profile_link, tokens_text
from openai_api.log_paginator import LogPaginator
from openai_api.models import ApiKey, KeyDay, RequestLog
from openai_api.replay_pages import ReplayPages
from openai_api.services.api_keys import change_api_key, delete_api_keys, revoke_api_keys, save_new_api_key


@admin.register(ApiKey)
class ApiKeyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """The plain key is on the page that answers its creation, and nowhere afterwards."""

    form = ApiKeyForm
    list_display = ("name", "prefix", "owner", "default_profile", "state", "last_used_at", "created_at")
    list_filter = ("revoked_at", "expires_at", ("owner", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("owner",)
    search_fields = ("name", "prefix", "owner__username")
    autocomplete_fields = ("owner",)
    readonly_fields = ("prefix", "revoked_at", "last_used_at", "used_today", "created_at")
    actions = ("revoke",)
    fieldsets = (
        (None, {"fields": ("name", "owner")}),
        (
            "What requests may use",
            {
                "fields": (
                    "scopes",
                    "default_profile",
                    "allowed_models",
                    "allowed_profiles",
                    "may_steer_inline",
                    ("min_intensity", "max_intensity"),
                    "shares_examples",
                )
            },
        ),
        (
            "Limits",
            {
                "fields": (
                    "max_concurrent_requests",
                    "requests_per_minute",
                    "tokens_per_minute",
                    "requests_per_day",
                    "tokens_per_day",
                    "priority",
                    "expires_at",
                )
            },
        ),
        ("History", {"fields": ("prefix", "created_at", "last_used_at", "used_today", "revoked_at")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiKey]:
        return visible_keys(request.user, super().get_queryset(request))

    def get_fieldsets(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        """A new key has no history yet."""
        return self.fieldsets[:-1] if obj is None else self.fieldsets

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "owner" and not request.user.has_perm(SEE_ALL_KEYS):
            kwargs["queryset"] = User.objects.filter(username=request.user.get_username())
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    @admin.display(description="used today")
    def used_today(self, key: ApiKey) -> str:
        """As far as the log is written: some requests may be missing for a second."""
        day = key.days.filter(day=timezone.now().date()).first()
        return f"{day.requests} requests, {day.tokens} tokens" if day else "nothing"

    @admin.display(description="state")
    def state(self, key: ApiKey) -> str:
        if key.revoked_at is not None:
            return "revoked"
        return "usable" if key.is_usable else "expired or owner inactive"

    @admin.action(description="Revoke selected API keys", permissions=["change"])
    def revoke(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        for key in keys:
            self.log_change(request, key, "Revoked.")
        count = revoke_api_keys(keys=keys)
        self.message_user(
            request, f"{count} API keys are revoked. Requests with them are refused now.", messages.SUCCESS
        )

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        if change:
            change_api_key(api_key=obj, user=_user(request))
        else:
            request.created_key = save_new_api_key(api_key=obj, user=_user(request))  # type: ignore[attr-defined]  # for response_add

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None) -> HttpResponse:
        """Shows the key in the answer itself: a message would be kept in a cookie or the session until it is read."""
        context = {
            **self.admin_site.each_context(request),
            "title": "API key created",
            "opts": self.opts,
            "created": request.created_key,  # type: ignore[attr-defined]
        }
        return _render_once(request, context)

    def delete_model(self, request: HttpRequest, obj: ApiKey) -> None:
        delete_api_keys(keys=ApiKey.objects.filter(pk=obj.pk))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        delete_api_keys(keys=queryset)


@never_cache
def _render_once(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    return render(request, "admin/openai_api/apikey/created.html", context)


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Read-only, whoever looks."""

    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(KeyDay)
class KeyDayAdmin(ReadOnlyAdmin):
    """What keys used, day by day."""

    list_display = ("day", "api_key", "requests", "tokens")
    list_filter = (("api_key", admin.RelatedOnlyFieldListFilter),)
    list_select_related = ("api_key",)
    date_hierarchy = "day"

    def get_queryset(self, request: HttpRequest) -> QuerySet[KeyDay]:
        return visible_days(request.user, super().get_queryset(request))


@admin.register(RequestLog)
class RequestLogAdmin(ReplayPages, ReadOnlyAdmin):
    list_display = ("time", "model", "profile", "route", "outcome", "tokens", "took", "api_key")
    list_display_links = ("time",)
    list_filter = (
        ("created_at", admin.DateFieldListFilter),
        OutcomeFilter,
        EndpointFilter,
        ModelFilter,
        ProfileFilter,
        ("api_key", admin.RelatedFieldListFilter),
        "stream",
    )
    list_select_related = ("api_key",)
    list_per_page = 50
    search_fields = ("id__startswith", "user", "prompt")
    search_help_text = "The beginning of a request id, a user, or text of the prompt."
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # each would be counted over the whole log
    paginator = LogPaginator
    fieldsets = (
        (None, {"fields": ("id", "created_at", "endpoint", "model", "steering_profile", "stream")}),
        ("Outcome", {"fields": ("status", "finish_reason", "error_code", "error_message")}),
        ("Time", {"fields": ("queue", "ttft", "total")}),
        ("Tokens", {"fields": ("tokens", "steering_proof")}),
        ("Client", {"fields": ("api_key", "user", "client_address", "parameters_json")}),
        ("Prompt", {"fields": ("prompt_text",), "classes": ("log-text",)}),
        ("Completion", {"fields": ("completion_text",), "classes": ("log-text",)}),
    )

    class Media:
        css = {"all": ("openai_api/log.css",)}

    @admin.display(description="time", ordering="created_at")
    def time(self, row: RequestLog) -> str:
        return date_format(localtime(row.created_at), "M j H:i:s")

    @admin.display(description="endpoint", ordering="endpoint")
    def route(self, row: RequestLog) -> str:
        return row.endpoint.removeprefix("/v1/")

    @admin.display(description="outcome", ordering="status")
    def outcome(self, row: RequestLog) -> str:
        return f"{row.status} {row.error_code or row.finish_reason}"

    @admin.display(description="tokens")
    def tokens(self, row: RequestLog) -> str:
        return tokens_text(row)

    @admin.display(description="queue", ordering="queue_ms")
    def queue(self, row: RequestLog) -> str:
        return _milliseconds(row.queue_ms)

    @admin.display(description="TTFT", ordering="ttft_ms")
    def ttft(self, row: RequestLog) -> str:
        return _milliseconds(row.ttft_ms)

    @admin.display(description="total", ordering="total_ms")
    def total(self, row: RequestLog) -> str:
        return _milliseconds(row.total_ms)

    @admin.display(description="TTFT / total", ordering="total_ms")
    def took(self, row: RequestLog) -> str:
        return f"{_milliseconds(row.ttft_ms)} / {_milliseconds(row.total_ms)}"

    @admin.display(description="profile")
    def steering_profile(self, row: RequestLog) -> str | SafeString:
        return profile_link(row)

    @admin.display(description="steering")
    def steering_proof(self, row: RequestLog) -> str:
        if not row.fingerprint:
            return "none"
        policies = f", policies {row.policies}" if row.policies else ""
        counts = f"{row.steering_applied} of {row.steering_expected} layer applications"
        return f"{counts}, fingerprint {row.fingerprint}{policies}"

    @admin.display(description="parameters")
    def parameters_json(self, row: RequestLog) -> SafeString:
        return format_html("<pre>{}</pre>", pretty_json(row.parameters))

    @admin.display(description="prompt")
    def prompt_text(self, row: RequestLog) -> SafeString:
        return conversation(row.prompt)

    @admin.display(description="completion")
    def completion_text(self, row: RequestLog) -> SafeString:
        return conversation(row.completion)


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms"


def _user(request: HttpRequest) -> Any:
    return request.user
