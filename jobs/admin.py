"""Jobs in the admin: how far they are, what they say, cancel and retry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.safestring import SafeString
from procrastinate.contrib.django.models import ProcrastinateJob

from jobs import services
from jobs.errors import JobStateError
from jobs.job_filters import KindFilter
from jobs.job_pages import error_text, pretty_json, progress_bar, recent_lines, result_html, state_label, took_text
from jobs.models import Job
from jobs.result_permission import may_see_result

admin.site.unregister(ProcrastinateJob)  # deliveries; who looks for jobs finds ours


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Read-only but for cancel and retry. Without “manage all jobs”, everybody sees their own."""

    empty_words = "No jobs yet. Measuring an SAE, evaluating a version, a replay or a batch begins one."
    list_display = ("title", "kind_text", "state_text", "progress", "owner", "created_at", "took")
    list_filter = ("state", KindFilter, "created_at")
    list_per_page = 50
    show_full_result_count = False
    list_select_related = ("owner",)
    search_fields = ("title", "id__startswith", "owner__username")
    ordering = ("-created_at",)
    actions = ("cancel_selected", "retry_selected")
    fieldsets = (
        (None, {"fields": ("kind_text", "owner", "state_text", "progress", "failure")}),
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
        rows: QuerySet[Job] = super().get_queryset(request)
        return rows if _manages_all(request) else rows.filter(owner=_user(request))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or obj.has_ended)

    def has_control_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        """To cancel and to retry. Whose jobs, the query set decides."""
        return _manages_all(request) or request.user.has_perm("jobs.change_job")

    def get_fieldsets(self, request: HttpRequest, obj: Job | None = None) -> Any:
        """Without what the job found where its kind says that others may see it only."""
        if obj is None or may_see_result(obj, _user(request)):
            return self.fieldsets
        return [(name, options) for name, options in self.fieldsets if name not in ("Log", "Result")]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"can_control": self.has_control_permission(request)}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    def cancel_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._control(request, object_id, lambda job: services.cancel_job(job=job), "will stop")

    def retry_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._control(request, object_id, lambda job: services.retry_job(job=job), "is queued again")

    @admin.action(description="Cancel selected jobs", permissions=["control"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        for job in queryset:
            self._act(request, job, lambda job: services.cancel_job(job=job), "will stop")

    @admin.action(description="Retry selected jobs", permissions=["control"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        for job in queryset:
            self._act(request, job, lambda job: services.retry_job(job=job), "is queued again")

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
            self.log_change(request, job, f"It {outcome}.")
            self.message_user(request, f"The job “{job}” {outcome}.", messages.SUCCESS)

    @admin.display(description="kind", ordering="kind")
    def kind_text(self, job: Job) -> str:
        return job.kind_title

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
    return request.user.has_perm("jobs.manage_all_jobs")
