"""The page of a logged request that asks for its replay."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.access import may_see_text, record_access
from openai_api.services.replays import ReplayError, check_replayable, start_replay


class ReplayForm(forms.Form):
    profile = forms.CharField(
        required=False,
        max_length=200,
        help_text="name, name@version or none. Empty: exactly the version that the request had.",
    )


class ReplayPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Who may see texts of the log and change profiles may run its requests again."""

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.replay_view)
        own = [path("<path:object_id>/replay/", view, name="openai_api_requestlog_replay")]
        return [*own, *super().get_urls()]

    def has_replay_permission(self, request: HttpRequest) -> bool:
        may_steer = request.user.has_perm("steering.change_steeringprofile")
        return self.has_view_permission(request) and may_steer and may_see_text(request.user)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().change_view(request, object_id, form_url, extra_context)
        context = getattr(response, "context_data", None) or {}
        row = context.get("original")
        if isinstance(row, RequestLog):  # as it was read for the page
            context["can_replay"] = self.has_replay_permission(request) and is_replayable(row)
        return response

    def replay_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """A form; a POST enqueues the job and leads to its page."""
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404
        if not self.has_replay_permission(request):
            raise PermissionDenied
        assert isinstance(row, RequestLog)
        assert isinstance(request.user, User)
        form = ReplayForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                job = start_replay(row=row, profile=form.cleaned_data["profile"].strip(), owner=request.user)
            except ReplayError as error:
                form.add_error(None, str(error))
            else:
                record_access(act=LogAccess.Act.REPLAY, user=request.user, request_id=row.pk)
                self.message_user(request, f"“{job}” is queued. Its result will be on this page.", messages.SUCCESS)
                return HttpResponseRedirect(reverse("admin:jobs_job_change", args=[job.pk]))
        context = {
            **self.admin_site.each_context(request),
            "title": f"Replay {row}",
            "verb": "Replay",
            "opts": self.opts,
            "original": row,
            "form": form,
        }
        return TemplateResponse(request, "admin/openai_api/requestlog/replay.html", context)


def is_replayable(row: RequestLog) -> bool:
    try:
        check_replayable(row)
    except ReplayError:
        return False
    return True
