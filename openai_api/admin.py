"""API keys in the admin; the request log's is in :mod:`openai_api.request_log.admin`."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache

from openai_api.key_forms import ApiKeyForm
from openai_api.key_visibility import SEE_ALL_KEYS, visible_days, visible_keys
from openai_api.models import ApiKey, KeyDay
from openai_api.request_log.admin import LogAccessAdmin, ReadOnlyAdmin, RequestLogAdmin
from openai_api.services.api_keys import change_api_key, delete_api_keys, revoke_api_keys, save_new_api_key

__all__ = ("ApiKeyAdmin", "KeyDayAdmin", "LogAccessAdmin", "RequestLogAdmin")


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
        ("Request log", {"fields": ("log_content", "log_retention_days")}),
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


@admin.register(KeyDay)
class KeyDayAdmin(ReadOnlyAdmin):
    """What keys used, day by day."""

    list_display = ("day", "api_key", "requests", "tokens")
    list_filter = (("api_key", admin.RelatedOnlyFieldListFilter),)
    list_select_related = ("api_key",)
    date_hierarchy = "day"

    def get_queryset(self, request: HttpRequest) -> QuerySet[KeyDay]:
        return visible_days(request.user, super().get_queryset(request))


def _user(request: HttpRequest) -> Any:
    return request.user
