"""Admin pages of the request log and of its accesses. Both are read-only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.forms.widgets import Script
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from core.pagination import EstimatingPaginator
from core.read_only_admin import ReadOnlyAdmin
from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.access import may_see_text, record_access
from openai_api.request_log.detail import (
    conversation,
    effect_text,
    has_tokens,
    key_link,
    pretty_json,
    profile_link,
    tokens_html,
    version_html,
    watch_html,
)
from openai_api.request_log.entry import TOKENS, quotes_client, without_texts
from openai_api.request_log.export import ExportPages
from openai_api.request_log.replay_pages import ReplayPages, is_replayable
from openai_api.request_log.search_pages import SearchPages
from openai_api.request_log.summary import timeline_html, tokens_text, visible_text

WRITING_S = 1.0  # until the row of a request that has just ended is written
POLL_S = 0.05
ORDER = ("conditions", "format", "texts")  # jsonb keeps no order; other conditions follow these
WORDS = {("texts", True): "with texts", ("texts", False): "without texts"}


def access_text(access: LogAccess) -> str:
    """Describe an access, with the conditions of a search as its form names them."""
    names = [name for name in ORDER if name in access.detail]
    names += sorted(access.detail.keys() - names)
    return visible_text(", ".join(part for name in names for part in _parts(name, access.detail[name])))


def _parts(name: str, value: Any) -> Iterator[str]:
    if name == "conditions" and isinstance(value, dict):
        yield from _conditions(value)
    elif isinstance(value, bool) and (name, value) in WORDS:
        yield WORDS[name, value]
    else:
        yield f"{name}: {value}"


def _conditions(conditions: dict[str, Any]) -> Iterator[str]:
    """Describe the conditions; an export without conditions covers the whole log, which is stated."""
    if not conditions:
        yield "all requests"
    for name, value in conditions.items():
        yield f"words: {value}" if name == "text" else f"{name}: {value}"


NOT_SHOWN = "Visible to users who can view request texts."


@admin.register(RequestLog)
class RequestLogAdmin(ExportPages, ReplayPages, SearchPages, ReadOnlyAdmin):
    """Texts are shown to users with the permission for them, and each such access is recorded."""

    HEAD = ((None, {"fields": ("id_text", "created_at", "endpoint", "model_text", "steering_profile", "streamed")}),)
    WELL = (("Outcome", {"fields": ("status", "finish_text")}),)
    ILL = (("Outcome", {"fields": ("status", "finish_text", "code_text", "error_text")}),)
    WORK = (("Time", {"fields": ("timeline",)}), ("Tokens", {"fields": ("tokens", "steering_proof", "watched")}))
    VERSION = (("Profile", {"fields": ("version",), "classes": ("log-version",)}),)
    CLIENT = (("Client", {"fields": ("source", "key", "user_text", "client_address", "parameters_json")}),)
    TEXTS = (
        ("Prompt", {"fields": ("prompt_text",), "classes": ("log-text",)}),
        ("Completion", {"fields": ("completion_text",), "classes": ("log-text",)}),
    )

    class Media:
        css = {"all": ("openai_api/log.css", "openai_api/tokens/tokens.css", "steering/admin.css")}
        js = (Script("openai_api/tokens/logged.js", type="module"),)

    def get_fieldsets(self, request: HttpRequest, obj: RequestLog | None = None) -> Any:
        sees_version = request.user.has_perm("steering.view_profileversion")
        version = self.VERSION if sees_version and obj is not None and obj.profile else ()
        texts = self.TEXTS if may_see_text(request.user) else ()
        is_ill = obj is not None and (obj.error_code or obj.error_message)
        return (*self.HEAD, *(self.ILL if is_ill else self.WELL), *self.WORK, *version, *self.CLIENT, *texts)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> RequestLog | None:
        row = super().get_object(request, object_id, from_field)
        deadline = time.monotonic() + WRITING_S
        while row is None and time.monotonic() < deadline:  # a request that has just ended is being written
            time.sleep(POLL_S)
            row = super().get_object(request, object_id, from_field)
        if row is not None and not may_see_text(request.user):
            return without_texts(row)
        return row

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().change_view(request, object_id, form_url, extra_context)
        context = getattr(response, "context_data", None) or {}
        row = context.get("original") if response.status_code == 200 else None
        if isinstance(row, RequestLog) and (row.prompt or row.completion or has_tokens(row)):
            assert isinstance(request.user, User)
            record_access(act=LogAccess.Act.READ, user=request.user, request_id=row.pk)
            url = reverse("request-explain", args=[row.pk]) if is_replayable(row) else ""
            context["tokens"] = tokens_html(row, request.user, explain_url=url)
        return response

    @admin.display(description="id")
    def id_text(self, row: RequestLog) -> str:
        return visible_text(row.pk)

    @admin.display(description="model")
    def model_text(self, row: RequestLog) -> str:
        return visible_text(row.model)

    @admin.display(description="streamed")
    def streamed(self, row: RequestLog) -> str:
        """Return a word, since a red cross would look like an error."""
        return "yes" if row.stream else "no"

    @admin.display(description="API key")
    def key(self, row: RequestLog) -> str | SafeString:
        return key_link(row)

    @admin.display(description="user")
    def user_text(self, row: RequestLog) -> str:
        return visible_text(row.user)

    @admin.display(description="finish reason")
    def finish_text(self, row: RequestLog) -> str:
        return visible_text(row.finish_reason)

    @admin.display(description="error code")
    def code_text(self, row: RequestLog) -> str:
        return visible_text(row.error_code)

    @admin.display(description="error")
    def error_text(self, row: RequestLog) -> str:
        if not row.error_message and row.error_code and quotes_client(row.status):
            return NOT_SHOWN
        return visible_text(row.error_message)

    @admin.display(description="timeline")
    def timeline(self, row: RequestLog) -> SafeString:
        return timeline_html(row)

    @admin.display(description="tokens")
    def tokens(self, row: RequestLog) -> str:
        return tokens_text(row)

    @admin.display(description="profile")
    def steering_profile(self, row: RequestLog) -> str | SafeString:
        return profile_link(row)

    @admin.display(description="edits")
    def version(self, row: RequestLog) -> str | SafeString:
        return version_html(row)

    @admin.display(description="watch rules")
    def watched(self, row: RequestLog) -> str | SafeString:
        return watch_html(row)

    @admin.display(description="steering")
    def steering_proof(self, row: RequestLog) -> str:
        if not row.fingerprint:
            return "none"
        policies = f", policies {row.policies}" if row.policies else ""
        counts = f"applied at {row.steering_applied} of {row.steering_expected} steering points"
        effects = "".join(f"; {effect_text(effect)}" for effect in row.steering_effects)
        return f"{counts}{effects}; fingerprint {row.fingerprint}{policies}"

    @admin.display(description="parameters")
    def parameters_json(self, row: RequestLog) -> SafeString:
        asked = {name: value for name, value in row.parameters.items() if name != TOKENS or not has_tokens(row)}
        return format_html('<pre tabindex="0">{}</pre>', visible_text(pretty_json(asked)))

    @admin.display(description="prompt")
    def prompt_text(self, row: RequestLog) -> SafeString:
        return conversation(row.prompt)

    @admin.display(description="completion")
    def completion_text(self, row: RequestLog) -> SafeString:
        return conversation(row.completion)


@admin.register(LogAccess)
class LogAccessAdmin(ReadOnlyAdmin):
    """Who read, searched, exported or replayed logged texts."""

    empty_words = "No accesses yet. Reading, searching, exporting and replaying logged texts is recorded here."
    list_display = ("at", "who", "act", "request_link", "what", "num_rows", "ended")
    list_filter = ("act", "at")
    search_fields = ("username", "request_id__startswith")
    search_help_text = "User name, or start of a request id."
    fields = ("at", "who", "act", "request_link", "what", "num_rows", "ended")
    show_full_result_count = False
    paginator = EstimatingPaginator

    class Media:
        css = {"all": ("openai_api/log.css",)}

    @admin.display(description="who", ordering="username")
    def who(self, access: LogAccess) -> str:
        return access.username or "command or job"

    @admin.display(description="request")
    def request_link(self, access: LogAccess) -> str | SafeString:
        if not access.request_id:
            return ""
        url = reverse("admin:openai_api_requestlog_change", args=[quote(access.request_id)])
        return format_html('<a href="{}">{}</a>', url, visible_text(access.request_id))

    @admin.display(description="what")
    def what(self, access: LogAccess) -> str:
        return access_text(access)

    @admin.display(description="completed")
    def ended(self, access: LogAccess) -> str:
        """Return a word, since a red cross beside each search would look like an error."""
        return "yes" if access.is_complete else "no"
