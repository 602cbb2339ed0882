"""Admin pages of API keys: permissions, usage, rotation and revocation."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.widgets import AdminTextareaWidget
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models
from django.db.models import Prefetch, QuerySet
from django.forms.widgets import Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.template.defaultfilters import pluralize
from django.urls import path, reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache

from openai_api.http.public_url import public_url
from openai_api.keys.forms import ApiKeyForm, RevokeForm, RotateForm
from openai_api.keys.record import MEDIA_UNITS
from openai_api.keys.services import (
    SEE_ALL_KEYS,
    CreatedKey,
    change_api_key,
    delete_api_keys,
    revoke_api_keys,
    rotate_api_key,
    save_new_api_key,
    visible_keys,
)
from openai_api.keys.static_key import is_current, is_static
from openai_api.keys.usage import minute_use, usage_plots
from openai_api.models import ApiKey, KeyDay

_TEMPLATES = "admin/openai_api/apikey"


class KeyPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Pages that rotate or revoke a key: GET asks for confirmation, POST does it."""

    def get_urls(self) -> list[Any]:
        acts = (("rotate", self.rotate_view), ("revoke", self.revoke_view))
        own = [
            path(f"<path:object_id>/{name}/", self.admin_site.admin_view(view), name=f"openai_api_apikey_{name}")
            for name, view in acts
        ]
        return [*own, *super().get_urls()]

    def rotate_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = self._key(request, object_id)
        form = RotateForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                created = rotate_api_key(api_key=key, grace=form.grace, user=staff(request))
            except ValidationError as error:
                form.add_error(None, error)
            else:
                self.log_change(request, key, "Rotated.")
                return self.secret_page(request, created, "API key rotated")
        return self._ask(request, key, "rotate", f"Rotate {key}", form)

    def revoke_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = self._key(request, object_id)
        form = RevokeForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            rows = ApiKey.objects.filter(pk=key.pk)
            if revoke_api_keys(keys=rows, reason=form.cleaned_data["reason"], user=staff(request)):
                self.log_change(request, key, "Revoked.")
                self.message_user(request, f"Revoked {key}. Requests with it are now refused.", messages.SUCCESS)
            else:
                self.message_user(request, f"{key} is already revoked.", messages.WARNING)
            return HttpResponseRedirect(reverse("admin:openai_api_apikey_change", args=[key.pk]))
        return self._ask(request, key, "revoke", f"Revoke {key}", form)

    def secret_page(self, request: HttpRequest, created: CreatedKey, title: str) -> HttpResponse:
        """Show the key in the response itself: a message would be stored in a cookie or the session."""
        context = {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "created": created}
        context["base_url"] = public_url(request, "/v1")
        return _render_once(request, context)

    def _key(self, request: HttpRequest, object_id: str) -> ApiKey:
        key = self.get_object(request, unquote(object_id))
        if not isinstance(key, ApiKey):
            raise Http404
        if not self.has_change_permission(request, key):
            raise PermissionDenied
        return key

    def _ask(self, request: HttpRequest, key: ApiKey, name: str, title: str, form: forms.Form) -> HttpResponse:
        context = {**self.admin_site.each_context(request), "title": title, "opts": self.opts}
        return render(request, f"{_TEMPLATES}/{name}.html", {**context, "original": key, "form": form})


@never_cache
def _render_once(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    return render(request, f"{_TEMPLATES}/created.html", context)


def staff(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


LOG = "admin:openai_api_requestlog_changelist"
MASS_REASON = "revoked in bulk"


@admin.register(ApiKey)
class ApiKeyAdmin(KeyPages, admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """The secret is shown only in the response that creates or rotates the key."""

    form = ApiKeyForm
    formfield_overrides = {models.TextField: {"widget": AdminTextareaWidget(attrs={"rows": 2})}}
    empty_words = "No API keys yet. Create one for each client. A key is shown once."
    list_display = ("name", "prefix", "owner", "default_profile", "state", "used_today", "last_used_at", "created_at")
    list_filter = ("revoked_at", "expires_at", ("owner", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("owner",)
    search_fields = ("name", "prefix", "note", "owner__username")
    autocomplete_fields = ("owner",)
    readonly_fields = (
        "prefix",
        "state",
        "used_today",
        "created_at",
        "last_used_at",
        "rotated_at",
        "revoked_at",
        "revoked_reason",
    )
    actions = ("revoke",)
    fieldsets = (
        (None, {"fields": ("name", "owner", "note"), "classes": ("part-access",)}),
        (
            "Access",
            {
                "fields": (
                    "scopes",
                    "allowed_models",
                    "default_profile",
                    "allowed_profiles",
                    "may_steer_inline",
                    ("min_intensity", "max_intensity"),
                    "shares_examples",
                ),
                "classes": ("part-access",),
            },
        ),
        ("Request log", {"fields": ("log_content", "log_retention_days"), "classes": ("part-limits",)}),
        (
            "Limits",
            {
                "fields": (
                    "max_concurrent_requests",
                    ("requests_per_minute", "tokens_per_minute"),
                    ("requests_per_day", "tokens_per_day"),
                    tuple(f"{unit}_per_day" for unit in MEDIA_UNITS),
                    "priority",
                    "expires_at",
                ),
                "classes": ("part-limits",),
            },
        ),
        (
            "History",
            {
                "fields": (
                    "state",
                    "used_today",
                    "prefix",
                    "created_at",
                    "last_used_at",
                    "rotated_at",
                    "revoked_at",
                    "revoked_reason",
                ),
                "classes": ("part-usage",),
            },
        ),
    )

    class Media:
        css = {"all": ("openai_api/keys.css",)}
        js = (Script("console/page-parts.js", type="module"),)

    def get_fieldsets(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        """Hide the history of a key that does not exist yet."""
        return self.fieldsets[:-1] if obj is None else self.fieldsets

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiKey]:
        today = KeyDay.objects.filter(day=timezone.now().date())
        rows = visible_keys(request.user, super().get_queryset(request))
        return rows.prefetch_related(Prefetch("days", queryset=today, to_attr="today"))

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Preselect the current user as the owner."""
        return {"owner": request.user.pk, **super().get_changeform_initial_data(request)}

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the secret after saving, whichever button was pressed."""
        only_save = {"show_save_and_add_another": False, "show_save_and_continue": False}
        return super().add_view(request, form_url, {**(extra_context or {}), **only_save})

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "owner" and not request.user.has_perm(SEE_ALL_KEYS):
            kwargs["queryset"] = User.objects.filter(username=request.user.get_username())
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        key = self.get_object(request, object_id)
        shown: dict[str, Any] = {}
        if isinstance(key, ApiKey) and self.has_view_permission(request, key):
            shown = {"plots": usage_plots(key), "minute_use": minute_use(key)}
            if request.user.has_perm("openai_api.view_requestlog"):
                shown["log_url"] = f"{reverse(LOG)}?{urlencode({'key': key.name})}"
            shown["can_act"] = self.has_change_permission(request, key) and key.revoked_at is None
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **shown})

    @admin.display(description="used today")
    def used_today(self, key: ApiKey) -> str:
        """Return today's usage as far as the log is written, which may lag by a second."""
        today: list[KeyDay] = key.today  # type: ignore[attr-defined]  # prefetched
        return f"{today[0].requests:,} requests, {today[0].tokens:,} tokens" if today else "–"

    @admin.display(description="state")
    def state(self, key: ApiKey) -> str:
        if key.revoked_at is not None:
            return "revoked"
        if is_static(key.digest) and not is_current(key.digest):
            return "not usable: MILLM_ADMIN_API_KEY is unset or has another value"
        if not key.is_usable:
            return "expired" if key.owner.is_active else "owner is inactive"
        if key.has_old_secret and key.old_valid_until is not None:
            return f"usable; old secret {key.old_prefix}… valid until {key.old_valid_until:%Y-%m-%d %H:%M} UTC"
        return "usable"

    @admin.action(description="Revoke selected API keys", permissions=["change"])
    def revoke(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        for key in keys:
            self.log_change(request, key, "Revoked.")
        rows = ApiKey.objects.filter(pk__in=[key.pk for key in keys])
        count = revoke_api_keys(keys=rows, reason=MASS_REASON, user=staff(request))
        self.message_user(
            request, f"Revoked {count} API key{pluralize(count)}. Requests with them are now refused.", messages.SUCCESS
        )

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        if change:
            change_api_key(api_key=obj, user=staff(request))
        else:
            request.created_key = save_new_api_key(api_key=obj, user=staff(request))  # type: ignore[attr-defined]  # for response_add

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None) -> HttpResponse:
        return self.secret_page(request, request.created_key, "API key created")  # type: ignore[attr-defined]  # just set

    def delete_model(self, request: HttpRequest, obj: ApiKey) -> None:
        delete_api_keys(keys=ApiKey.objects.filter(pk=obj.pk), user=staff(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        rows = ApiKey.objects.filter(pk__in=queryset.values("pk"))
        delete_api_keys(keys=rows, user=staff(request))
