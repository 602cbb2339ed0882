"""Jobs in the admin: list, progress, log and result of a job, cancel and retry."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from jobs import services
from jobs.errors import JobStateError, UnknownKindError
from jobs.kinds import find_kind, kind_title, known_kinds, may_see_result
from jobs.models import MANAGE_ALL, Job


class KindFilter(admin.SimpleListFilter):
    """Filter by the kinds that this process knows, without querying all jobs."""

    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(kind.name, kind.title) for kind in known_kinds()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        value = self.value()
        return queryset if value is None else queryset.filter(kind=value)


MAX_SHOWN_LINES = 500
MAX_SHOWN_JSON = 20_000


def state_label(job: Job) -> SafeString:
    text = "cancelling" if job.cancel_requested and not job.has_ended else job.get_state_display().lower()
    return _live(job, "state", format_html('<span class="job-state job-{}">{}</span>', job.state, text))


def progress_bar(job: Job) -> SafeString:
    """Return a progress bar if the total is known, and the job's message."""
    counts = f"{job.done:,} of {job.total:,}" if job.total else ""
    bar = format_html('<progress class="job-bar" max="{}" value="{}"></progress>', job.total, job.done)
    parts = (bar if job.total else "", counts, job.message)
    return _live(job, "progress", format_html_join(" ", "{}", ((part,) for part in parts if part)))


def error_text(job: Job) -> SafeString:
    return _live(job, "error", format_html('<span class="job-error">{}</span>', job.error))


def recent_lines(job: Job) -> SafeString:
    """Return the latest log lines, oldest first."""
    lines = list(job.lines.order_by("-pk")[:MAX_SHOWN_LINES])[::-1]
    rows = ((timezone.localtime(line.at).strftime("%H:%M:%S"), line.text) for line in lines)
    text = format_html_join("\n", "{} {}", rows)
    return _live(job, "log", format_html('<pre class="job-log" tabindex="0">{}</pre>', text))


def took_text(job: Job) -> str:
    """Return the duration from the first start to the end, or until now."""
    if job.started_at is None:
        return "–"
    end = job.finished_at or timezone.now()
    return str(timedelta(seconds=round((end - job.started_at).total_seconds())))


def pretty_json(value: Any) -> SafeString:
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    cut = f"\n… {len(text) - MAX_SHOWN_JSON:,} more characters" if len(text) > MAX_SHOWN_JSON else ""
    return format_html('<pre class="job-json" tabindex="0">{}{}</pre>', text[:MAX_SHOWN_JSON], cut)


def result_html(job: Job) -> SafeString:
    """Return the result as its kind renders it, followed by the JSON."""
    if not job.result:
        return SafeString("–")
    rendered = _rendered_result(job)
    if rendered is None:
        return pretty_json(job.result)
    return format_html("{}<details><summary>As JSON</summary>{}</details>", rendered, pretty_json(job.result))


def _figures(result: dict[str, Any]) -> SafeString | None:
    """Return a list of names and values; None if the result is nested."""
    if any(isinstance(value, dict | list) for value in result.values()):
        return None
    rows = ((name.replace("_", " ").capitalize(), _value(value)) for name, value in result.items())
    return format_html('<dl class="job-figures">{}</dl>', format_html_join("", "<dt>{}</dt><dd>{}</dd>", rows))


def _value(value: Any) -> str:
    """Format a JSON value that is neither a list nor an object."""
    if value in (None, ""):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _rendered_result(job: Job) -> SafeString | None:
    """Return the rendered result; None unless the job succeeded and its kind is known."""
    if job.state != Job.State.SUCCEEDED or not job.result:
        return None
    try:
        show = find_kind(job.kind).load_show()
    except UnknownKindError:
        return None
    return show(job.result) if show else _figures(job.result)


def _live(job: Job, part: str, content: SafeString) -> SafeString:
    """Wrap content that live.js updates until the job has ended, from the topic ``job:<id>`` or by polling."""
    html = '<span id="job-{}-{}" data-job-live="{}" data-live-topic="job:{}">{}</span>'
    if job.has_ended:
        return format_html('<span id="job-{}-{}" data-job-live="">{}</span>', job.pk, part, content)
    return format_html(html, job.pk, part, "1", job.pk, content)


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    """Admin of jobs: read-only except cancel and retry. Users without "manage all jobs" see their own jobs."""

    empty_words = (
        "No jobs yet. Measuring an SAE, evaluating a version, replaying a request or uploading a batch starts one."
    )
    list_display = ("title", "kind_text", "lane", "state_text", "progress", "owner", "created_at", "took")
    list_filter = ("state", "lane", KindFilter, "created_at")
    list_per_page = 50
    show_full_result_count = False
    list_select_related = ("owner",)
    search_fields = ("title", "id__startswith", "owner__username")
    ordering = ("-created_at",)
    actions = ("cancel_selected", "retry_selected")
    fieldsets = (
        (None, {"fields": ("kind_text", "lane", "owner", "state_text", "progress", "failure")}),
        ("Result", {"fields": ("result_text",)}),
        ("Log", {"fields": ("log",)}),
        ("Parameters", {"fields": ("params_text",), "classes": ("collapse",)}),
        (
            "History",
            {"fields": ("id", "priority", "attempts", "crashes", "worker", "created_at", "started_at", "finished_at")},
        ),
    )

    class Media:
        css = {"all": ("jobs/jobs.css",)}
        js = ("jobs/live.js",)

    def get_urls(self) -> list[Any]:
        acts = (("cancel", self.cancel_view), ("retry", self.retry_view))
        own = [
            path(f"<path:object_id>/{name}/", self.admin_site.admin_view(view), name=f"jobs_job_{name}")
            for name, view in acts
        ]
        return [*own, *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        return Job.objects.visible_to(_user(request))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or obj.has_ended)

    def has_control_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        """Return whether the user may cancel and retry jobs. The query set decides which."""
        return _manages_all(request) or request.user.has_perm("jobs.change_job")

    def get_fieldsets(self, request: HttpRequest, obj: Job | None = None) -> Any:
        """Hide log and result if the job's kind restricts them to other users."""
        if obj is None or may_see_result(obj.kind, _user(request)):
            return self.fieldsets
        return [(name, options) for name, options in self.fieldsets if name not in ("Log", "Result")]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"can_control": self.has_control_permission(request)}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    def cancel_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._control(request, object_id, lambda job: services.cancel_job(job=job), "Cancelling")

    def retry_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._control(request, object_id, lambda job: services.retry_job(job=job), "Requeued")

    @admin.action(description="Cancel selected jobs", permissions=["control"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        for job in queryset:
            self._act(request, job, lambda job: services.cancel_job(job=job), "Cancelling")

    @admin.action(description="Retry selected jobs", permissions=["control"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        for job in queryset:
            self._act(request, job, lambda job: services.retry_job(job=job), "Requeued")

    def _control(self, request: HttpRequest, object_id: str, act: Callable[[Job], Job], outcome: str) -> HttpResponse:
        job = self.get_object(request, unquote(object_id))
        if job is None:
            raise Http404
        if not self.has_control_permission(request, job):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self._act(request, job, act, outcome)
        return HttpResponseRedirect(reverse("admin:jobs_job_change", args=[job.pk]))

    def _act(self, request: HttpRequest, job: Job, act: Callable[[Job], Job], outcome: str) -> None:
        try:
            act(job)
        except JobStateError as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            self.log_change(request, job, f"{outcome}.")
            self.message_user(request, f'{outcome} "{job}".', messages.SUCCESS)

    @admin.display(description="kind", ordering="kind")
    def kind_text(self, job: Job) -> str:
        return kind_title(job.kind)

    @admin.display(description="state", ordering="state")
    def state_text(self, job: Job) -> SafeString:
        return state_label(job)

    @admin.display(description="progress")
    def progress(self, job: Job) -> SafeString:
        return progress_bar(job)

    @admin.display(description="took")
    def took(self, job: Job) -> str:
        return took_text(job)

    @admin.display(description="error")
    def failure(self, job: Job) -> SafeString:
        return error_text(job)

    @admin.display(description="lines")
    def log(self, job: Job) -> SafeString:
        return recent_lines(job)

    @admin.display(description="parameters")
    def params_text(self, job: Job) -> SafeString:
        return pretty_json(job.params)

    @admin.display(description="result")
    def result_text(self, job: Job) -> SafeString:
        return result_html(job)


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


def _manages_all(request: HttpRequest) -> bool:
    return request.user.has_perm(MANAGE_ALL)
