"""Pages of a version's admin that ask for an evaluation of it."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from jobs.errors import JobError
from steering.errors import EvaluationError
from steering.evaluation.forms import CalibrationForm, ComparisonForm, EvaluationForm, SweepForm
from steering.evaluation.services import create_evaluation
from steering.models import ProfileVersion
from steering.visibility import visible_evaluations, visible_versions

FORMS: dict[str, type[EvaluationForm]] = {
    "sweep": SweepForm,
    "calibrate": CalibrationForm,
    "compare": ComparisonForm,
}

TOLD = {
    "sweep": "A job has the model answer the prompts at each strength: how far answers move from unsteered ones, how"
    " fluent they stay, and how often your words come.",
    "calibrate": "A job looks for the strength at which answers are as far from unsteered ones as the target says.",
    "compare": "A job has both answer the prompts, and marks where they part.",
}


class EvaluationPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Who may change profiles may have them evaluated: it takes the model's time."""

    def get_urls(self) -> list[Any]:
        own = [
            path(
                f"<path:object_id>/{name}/",
                self.admin_site.admin_view(partial(self.evaluate_view, name=name)),
                name=f"steering_profileversion_{name}",
            )
            for name in FORMS
        ]
        return [*own, *super().get_urls()]

    def has_evaluate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("steering.change_steeringprofile")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context: dict[str, Any] = {"can_evaluate": self.has_evaluate_permission(request)}
        version = self.get_object(request, unquote(object_id))
        if version is not None:
            evaluations = visible_evaluations(request.user, version.evaluations.all())
            context |= {"evaluations": evaluations.select_related("other", "version__profile")[:50]}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    def evaluate_view(self, request: HttpRequest, object_id: str, name: str) -> HttpResponse:
        """A form; a POST enqueues the job and leads to its page."""
        version = self.get_object(request, unquote(object_id))
        if version is None:
            raise Http404
        if not self.has_evaluate_permission(request):
            raise PermissionDenied
        assert isinstance(version, ProfileVersion)
        form = FORMS[name](version, visible_versions(request.user), request.POST or None)
        if request.method == "POST" and form.is_valid() and (page := self._start(request, form)):
            return HttpResponseRedirect(page)
        context = {
            **self.admin_site.each_context(request),
            "title": f"{name.capitalize()} {version}",
            "opts": self.opts,
            "original": version,
            "form": form,
            "verb": name.capitalize(),
            "told": TOLD[name],
        }
        return TemplateResponse(request, "admin/steering/profileversion/evaluate.html", context)

    def _start(self, request: HttpRequest, form: EvaluationForm) -> str:
        """The page of the job; empty where it was not taken."""
        assert isinstance(request.user, User)
        try:
            job = create_evaluation(wish=form.wish, owner=request.user)
        except (EvaluationError, JobError) as error:
            form.add_error(None, str(error))
            return ""
        self.message_user(request, f"“{job}” is queued. Its report will be on the version's page.", messages.SUCCESS)
        return reverse("admin:jobs_job_change", args=[job.pk])
