"""Pages that start the replay of a logged request and show its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.safestring import SafeString

from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.access import may_see_text, record_access
from openai_api.request_log.replay import ReplayError, check_replayable, start_replay
from openai_api.request_log.summary import visible_text
from steering.evaluation.word_diff import word_diff


class ReplayForm(forms.Form):
    profile = forms.CharField(
        required=False,
        max_length=200,
        help_text="name, name@version or none. Empty: the version that the request used.",
    )


class ReplayPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Users who may see logged texts and change profiles may replay requests."""

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
        if isinstance(row, RequestLog):  # already loaded for the page
            context["can_replay"] = self.has_replay_permission(request) and is_replayable(row)
        return response

    def replay_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form; a POST enqueues the job and redirects to its page."""
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
                self.message_user(request, f'Queued "{job}". The result will appear here.', messages.SUCCESS)
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


@dataclass(frozen=True, slots=True)
class Pair:
    """The texts of one choice, with control characters made visible."""

    then: str
    now: str
    diff: SafeString


def replayed_html(result: Mapping[str, Any]) -> SafeString:
    texts = zip_longest(result["original"], result["texts"], fillvalue="")
    context = {
        "result": result,
        "verdict": verdict(result),
        "is_logged": RequestLog.objects.filter(pk=result["request"]).exists(),
        "pairs": [_pair(visible_text(then), visible_text(now)) for then, now in texts],
    }
    return render_to_string("admin/openai_api/requestlog/replayed.html", context)


def verdict(result: Mapping[str, Any]) -> str:
    """Return what the comparison shows, and why if that is known."""
    if result["same_text"]:
        return "Same text" + ("." if result["same_steering"] else ", although the steering differs.")
    if not result["same_steering"]:
        return "Different text: the steering differs."
    if not result["seeded"]:
        return "Different text, same steering: the request had no seed, so each run samples differently."
    return "Different text, same steering and seed: the model or its settings have changed since."


def _pair(then: str, now: str) -> Pair:
    return Pair(then, now, word_diff(then, now))
