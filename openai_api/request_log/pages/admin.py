"""Admin pages of the request log and of its accesses. Both are read-only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.forms.widgets import Script
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from core.pagination import EstimatingPaginator
from core.read_only_admin import ReadOnlyAdmin
from core.times import utc_text
from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.access import may_see_text, record_access
from openai_api.request_log.conversations import earlier_chats, earlier_turns, next_chat
from openai_api.request_log.entry import TOKENS, quotes_client, without_texts
from openai_api.request_log.export import ExportPages
from openai_api.request_log.pages.detail import (
    conversation,
    effect_text,
    has_tokens,
    key_link,
    metadata_html,
    neighbours,
    profile_link,
    studio_url,
    tokens_html,
    turns_html,
    version_html,
    watch_html,
)
from openai_api.request_log.pages.messages import pretty_json
from openai_api.request_log.pages.replay import ReplayPages, is_replayable
from openai_api.request_log.pages.scores import ScorePages, scores_context
from openai_api.request_log.pages.search import FILTERS, SearchPages
from openai_api.request_log.replay import ReplayError, curl_command
from openai_api.request_log.search_form import SearchForm
from openai_api.request_log.summary import badge_of, cost_of, known_prices, timeline_html, visible_text
from openai_api.request_log.writer import log_backlog

WRITING_S = 1.0  # until the row of a request that has just ended is written, by any process
MAX_WRITING_S = 15.0  # while entries of this process wait to be written
POLL_S = 0.05
ORDER = ("conditions", "format", "texts", "requests")  # jsonb keeps no order; other conditions follow these
WORDS = {("texts", True): "with texts", ("texts", False): "without texts"}


def access_text(access: LogAccess) -> str:
    """Describe an access, with the conditions of a search as its form names them."""
    names = [name for name in ORDER if name in access.detail]
    names += sorted(access.detail.keys() - names)
    return visible_text(", ".join(part for name in names for part in _parts(name, access.detail[name])))


def _request_link(pk: str) -> SafeString:
    url = reverse("admin:openai_api_requestlog_change", args=[quote(pk)])
    return format_html('<a href="{}">{}</a>', url, visible_text(pk))


def _parts(name: str, value: Any) -> Iterator[str]:
    if name == "conditions" and isinstance(value, dict):
        yield from _conditions(value)
    elif name == "requests" and isinstance(value, list):
        yield f"{len(value)} request{'' if len(value) == 1 else 's'}"
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


def _curl(request: HttpRequest, row: RequestLog) -> str:
    try:
        return curl_command(row, origin=request.build_absolute_uri("/").rstrip("/"))
    except ReplayError:
        return ""


@admin.register(RequestLog)
class RequestLogAdmin(ExportPages, ReplayPages, ScorePages, SearchPages, ReadOnlyAdmin):
    """Texts are shown to users with the permission for them, and each such access is recorded."""

    STEERING = (("Steering", {"fields": ("steering_proof", "watched")}),)
    VERSION = (("Profile", {"fields": ("version",), "classes": ("log-version",)}),)
    PARAMETERS = (("Parameters", {"fields": ("parameters_json",)}),)

    class Media:
        css = {"all": ("openai_api/log.css", "openai_api/tokens/tokens.css", "steering/admin.css")}
        js = (Script("openai_api/tokens/logged.js", type="module"), Script("openai_api/copy.js", type="module"))

    def get_fieldsets(self, request: HttpRequest, obj: RequestLog | None = None) -> Any:
        sees_version = request.user.has_perm("steering.view_profileversion")
        version = self.VERSION if sees_version and obj is not None and obj.profile else ()
        return (*self.STEERING, *version, *self.PARAMETERS)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> RequestLog | None:
        row: RequestLog | None = super().get_object(request, object_id, from_field)
        began_at, may_come = time.monotonic(), True
        while row is None and may_come:  # a request that has just ended is being written
            time.sleep(POLL_S)
            seconds = time.monotonic() - began_at
            may_come = seconds < (MAX_WRITING_S if log_backlog().waiting else WRITING_S)
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
        if isinstance(row, RequestLog):
            context |= self._page(request, row)
        return response

    def _page(self, request: HttpRequest, row: RequestLog) -> dict[str, Any]:
        """Return what the page shows besides the fieldsets, and record an access to texts."""
        assert isinstance(request.user, User)
        sees_text = may_see_text(request.user)
        form = SearchForm(QueryDict(request.GET.get(FILTERS, "")), sees_text=sees_text)
        if not form.is_valid():
            form = SearchForm({}, sees_text=sees_text)
            form.is_valid()
        has_texts = bool(row.prompt or row.completion or has_tokens(row))
        if has_texts:
            record_access(act=LogAccess.Act.READ, user=request.user, request_id=row.pk)
        search = form.search()
        # For one row, Postgres would look through the log by time instead of using the index of words.
        newer, older = (None, None) if search.text else neighbours(row, search.rows())
        context = {
            "rail": self._rail(row),
            "badge": badge_of(row),
            "timeline": timeline_html(row),
            "sees_text": sees_text,
            "newer": newer,
            "older": older,
            **scores_context(request.user, row),
            "conditions": urlencode(form.conditions),
            "filters": urlencode({FILTERS: urlencode(form.conditions)}) if form.conditions else "",
            "results": f"?{urlencode(form.conditions)}" if form.conditions else "",
        }
        if has_texts:
            url = reverse("request-explain", args=[row.pk]) if is_replayable(row) else ""
            context["conversation"] = conversation(row)
            if turns := earlier_turns(row):
                ids = [turn.pk for turn in turns]
                record_access(act=LogAccess.Act.LIST, user=request.user, detail={"requests": ids}, num_rows=len(turns))
                context |= {"turns": turns_html(turns), "num_turns": len(turns)}
            context |= {"earlier_chats": earlier_chats(row), "next_chat": next_chat(row)}
            context["tokens"] = tokens_html(row, request.user, explain_url=url)
            context["curl"] = _curl(request, row)
            context["studio"] = studio_url(row) if request.user.has_perm("console.use_playground") else ""
        return context

    def _rail(self, row: RequestLog) -> list[tuple[str, str | SafeString]]:
        """Return the names and values beside the conversation, without those that are empty."""
        error = row.error_message
        if not error and row.error_code and quotes_client(row.status):
            error = NOT_SHOWN
        cached = f", {row.cached_tokens} cached" if row.cached_tokens else ""
        cost = cost_of(row.model, row.prompt_tokens, row.cached_tokens, row.completion_tokens, known_prices())
        pairs = (
            ("Outcome", visible_text(row.error_code or row.finish_reason)),
            ("Error", visible_text(error)),
            ("Time", f"{utc_text(row.created_at)} UTC"),
            ("Model", visible_text(row.model)),
            ("Profile", profile_link(row) if row.profile else ""),
            ("Prompt tokens", f"{row.prompt_tokens:,}{cached}"),
            ("Completion tokens", f"{row.completion_tokens:,}"),
            ("Cost", "" if cost is None else f"{Decimal(str(cost)):f}"),
            ("Endpoint", row.endpoint),
            ("Streamed", "yes" if row.stream else "no"),
            ("Source", row.get_source_display()),
            ("API key", key_link(row)),
            ("User", visible_text(row.user)),
            ("Metadata", metadata_html(row)),
            ("Client address", row.client_address or ""),
        )
        return [(name, value) for name, value in pairs if value]

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


@admin.register(LogAccess)
class LogAccessAdmin(ReadOnlyAdmin):
    """Who read, searched, exported or replayed logged texts."""

    empty_words = "No accesses yet. Reading, searching, exporting and replaying logged texts is recorded here."
    list_display = ("at", "who", "act", "request_link", "what", "num_rows", "ended")
    list_filter = ("act", "at")
    search_fields = ("username", "request_id__startswith")
    search_help_text = "User name, or start of a request id. Listed texts are found by the whole id."
    fields = ("at", "who", "act", "request_link", "what", "listed", "num_rows", "ended")
    show_full_result_count = False
    paginator = EstimatingPaginator

    class Media:
        css = {"all": ("openai_api/log.css",)}

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[LogAccess], search_term: str
    ) -> tuple[QuerySet[LogAccess], bool]:
        found, may_repeat = super().get_search_results(request, queryset, search_term)
        if term := search_term.strip():
            found |= queryset.filter(detail__contains={"requests": [term]})
        return found, may_repeat

    @admin.display(description="listed requests")
    def listed(self, access: LogAccess) -> SafeString | str:
        ids = access.detail.get("requests", ())
        return format_html_join(", ", "{}", ((_request_link(pk),) for pk in ids)) or "–"

    @admin.display(description="who", ordering="username")
    def who(self, access: LogAccess) -> str:
        return access.username or "command or job"

    @admin.display(description="request")
    def request_link(self, access: LogAccess) -> str | SafeString:
        return _request_link(access.request_id) if access.request_id else ""

    @admin.display(description="what")
    def what(self, access: LogAccess) -> str:
        return access_text(access)

    @admin.display(description="completed")
    def ended(self, access: LogAccess) -> str:
        """Return a word, since a red cross beside each search would look like an error."""
        return "yes" if access.is_complete else "no"
