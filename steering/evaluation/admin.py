"""Evaluations in the admin: viewing and downloading reports, and applying calibrations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from core.errors import MillmError
from steering.evaluation.evidence import report_md
from steering.evaluation.headline import TEXTS as HEADLINE_TEXTS
from steering.evaluation.report import report_csv, report_html, report_json, report_page, report_png
from steering.evaluation.services import use_calibration
from steering.models import Evaluation
from steering.visibility import visible_evaluations

FILES: dict[str, tuple[str, Callable[[Evaluation], str | bytes]]] = {
    "html": ("text/html; charset=utf-8", report_page),
    "json": ("application/json; charset=utf-8", report_json),
    "csv": ("text/csv; charset=utf-8", report_csv),
    "png": ("image/png", report_png),
    "md": ("text/markdown; charset=utf-8", report_md),
}


def endings(evaluation: Evaluation) -> list[str]:
    """Return the files of a report; a comparison has no plots, and only a sweep has a table of methods."""
    missing = set() if evaluation.kind == Evaluation.Kind.SWEEP else {"md"}
    if evaluation.kind == Evaluation.Kind.COMPARISON:
        missing.add("png")
    return [ending for ending in FILES if ending not in missing]


@admin.register(Evaluation)
class EvaluationAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Reports of evaluations, read-only."""

    empty_words = "No evaluations yet. Start a sweep, a calibration or a comparison from a published version's page."
    list_display = ("__str__", "kind", "of_model", "created_by", "created_at")
    list_filter = ("kind", "model", ("created_by", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("model", "version__profile", "profile", "other__profile", "created_by")
    search_fields = ("version__profile__name", "profile__name")
    fieldsets = (
        (None, {"fields": ("of_version", "created_by", "created_at", "of_job", "files")}),
        ("Report", {"fields": ("report",), "classes": ("evaluation-report",)}),
    )

    class Media:
        css = {"all": ("steering/evaluation.css",)}

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        own = [
            path("<int:pk>/report.<str:ending>", view(self.file_view), name="steering_evaluation_file"),
            path("headline-kl/", view(self.recipe_view), name="steering_evaluation_recipe"),
            path("<path:object_id>/use/", view(self.use_view), name="steering_evaluation_use"),
        ]
        return [*own, *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Evaluation]:
        return visible_evaluations(request.user, super().get_queryset(request))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Evaluation | None = None) -> bool:
        return False

    def has_use_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("steering.change_steeringprofile")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        evaluation = self.get_object(request, unquote(object_id))
        can_use = (
            evaluation is not None
            and evaluation.kind == Evaluation.Kind.CALIBRATION
            and evaluation.result["proposal"]["kl"] is not None
            and self.has_use_permission(request)
        )
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), "can_use": can_use})

    def file_view(self, request: HttpRequest, pk: int, ending: str) -> HttpResponse:
        """Return the report as a file."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        evaluation = self.get_object(request, str(pk))
        if evaluation is None or ending not in endings(evaluation):
            raise Http404
        kind, make = FILES[ending]
        name = f"{evaluation.kind}-{evaluation.subject.replace('@', '-').replace(' ', '-')}-{evaluation.pk}.{ending}"
        answer = HttpResponse(make(evaluation), content_type=kind)
        answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    def recipe_view(self, request: HttpRequest) -> HttpResponse:
        """Explain the headline KL."""
        context = {**self.admin_site.each_context(request), "title": "Headline KL", "prompts": HEADLINE_TEXTS.prompts}
        return TemplateResponse(request, "admin/steering/evaluation/recipe.html", context)

    def use_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Apply the proposed strength to the draft."""
        evaluation = self.get_object(request, unquote(object_id))
        if evaluation is None:
            raise Http404
        if not self.has_use_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            profile = use_calibration(evaluation=evaluation)
        except MillmError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(reverse("admin:steering_evaluation_change", args=[evaluation.pk]))
        self.message_user(request, f'Applied to draft "{profile}". Publish to use it.', messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:steering_steeringprofile_change", args=[profile.pk]))

    @admin.display(description="model", ordering="model")
    def of_model(self, evaluation: Evaluation) -> str:
        return str(evaluation.model)

    @admin.display(description="version")
    def of_version(self, evaluation: Evaluation) -> str | SafeString:
        if evaluation.version_id is not None:
            url = reverse("admin:steering_profileversion_change", args=[evaluation.version_id])
        elif evaluation.profile_id is not None:
            url = reverse("admin:steering_steeringprofile_change", args=[evaluation.profile_id])
        else:
            return evaluation.subject
        return format_html('<a href="{}">{}</a>', url, evaluation.subject)

    @admin.display(description="job", empty_value="deleted")
    def of_job(self, evaluation: Evaluation) -> SafeString | None:
        if evaluation.job_id is None:
            return None
        url = reverse("admin:jobs_job_change", args=[evaluation.job_id])
        return format_html('<a href="{}">{}</a>', url, evaluation.job)

    @admin.display(description="download")
    def files(self, evaluation: Evaluation) -> SafeString:
        links = (
            (reverse("admin:steering_evaluation_file", args=[evaluation.pk, ending]), ending.upper())
            for ending in endings(evaluation)
        )
        return format_html_join(" · ", '<a href="{}">{}</a>', links)

    @admin.display(description="")
    def report(self, evaluation: Evaluation) -> SafeString:
        return format_html('<div class="evaluation">{}</div>', report_html(evaluation))
