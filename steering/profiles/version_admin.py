"""The admin of published versions: what they do, how they differ, and evaluations of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from core.errors import MillmError
from core.read_only_admin import ReadOnlyAdmin
from steering import services
from steering.evaluation.forms import CalibrationForm, ComparisonForm, EvaluationForm, SweepForm
from steering.evaluation.headline import find_headlines
from steering.evaluation.services import create_evaluation
from steering.models import ProfileVersion
from steering.profiles.availability import version_problem
from steering.profiles.display import changes_since_previous, edits_table, problem_text, requests_link
from steering.visibility import visible_evaluations, visible_versions

FORMS: dict[str, type[EvaluationForm]] = {
    "sweep": SweepForm,
    "calibrate": CalibrationForm,
    "compare": ComparisonForm,
}

DESCRIPTIONS = {
    "sweep": "Runs your prompts at each strength and measures effect, fluency and word use.",
    "calibrate": "Runs your prompts and searches for the strength that moves answers by the target amount.",
    "compare": "Runs your prompts on both sides and highlights where the answers differ.",
}


@admin.register(ProfileVersion)
class ProfileVersionAdmin(ReadOnlyAdmin):
    """Published versions, read-only, with the pages that start evaluations of a version."""

    has_history = True
    empty_words = "No versions yet. Publish a profile to create one."
    list_display = ("__str__", "of_model", "note", "published_by", "published_at", "short_fingerprint")
    list_filter = (
        "profile__model",
        ("profile", admin.RelatedOnlyFieldListFilter),
        ("published_by", admin.RelatedOnlyFieldListFilter),
    )
    list_select_related = ("profile__model", "published_by")
    search_fields = ("profile__name", "note", "fingerprint__startswith")
    date_hierarchy = "published_at"
    ordering = ("-published_at",)
    actions = ("make_draft",)
    fields = (
        "profile",
        "number",
        "note",
        "published_by",
        "published_at",
        "problem",
        "edits_shown",
        "changed",
        "fingerprint",
        "headline",
        "used",
    )

    class Media:
        css = {"all": ("steering/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[ProfileVersion]:
        return visible_versions(request.user, super().get_queryset(request))

    def has_restore_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("steering.change_steeringprofile")

    @admin.action(description="Restore as draft", permissions=["restore"])
    def make_draft(self, request: HttpRequest, queryset: QuerySet[ProfileVersion]) -> None:
        versions = list(queryset.select_related("profile"))
        if len({version.profile_id for version in versions}) < len(versions):
            self.message_user(request, "Select one version per profile.", messages.ERROR)
            return
        for version in versions:
            restore_version(request, version)

    @admin.display(description="model", ordering="profile__model")
    def of_model(self, version: ProfileVersion) -> str:
        return str(version.profile.model)

    @admin.display(description="problem")
    def problem(self, version: ProfileVersion) -> SafeString | str:
        return problem_text(version_problem(version))

    @admin.display(description="fingerprint")
    def short_fingerprint(self, version: ProfileVersion) -> str:
        return version.fingerprint[:12]

    @admin.display(description="edits")
    def edits_shown(self, version: ProfileVersion) -> SafeString:
        return edits_table(version)

    @admin.display(description="changes")
    def changed(self, version: ProfileVersion) -> SafeString | str:
        return changes_since_previous(version)

    @admin.display(description="headline KL")
    def headline(self, version: ProfileVersion) -> SafeString:
        found = find_headlines(version.profile.model, [version.fingerprint]).get(version.fingerprint)
        words = "not measured yet; the profile's page measures it" if found is None else str(found)
        recipe = reverse("admin:steering_evaluation_recipe")
        return format_html('{} (<a href="{}">how it is measured</a>)', words, recipe)

    @admin.display(description="used by")
    def used(self, version: ProfileVersion) -> SafeString | str:
        return requests_link(version)

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
        """Show the form; a POST enqueues the job and redirects to its page."""
        version = self.get_object(request, unquote(object_id))
        if version is None:
            raise Http404
        if not self.has_evaluate_permission(request):
            raise PermissionDenied
        assert isinstance(version, ProfileVersion)
        form = FORMS[name](version, visible_versions(request.user), request.POST or None)
        if request.method == "POST" and form.is_valid() and (page := self._start_evaluation(request, form)):
            return HttpResponseRedirect(page)
        context = {
            **self.admin_site.each_context(request),
            "title": f"{name.capitalize()} {version}",
            "opts": self.opts,
            "original": version,
            "form": form,
            "verb": name.capitalize(),
            "description": DESCRIPTIONS[name],
        }
        return TemplateResponse(request, "admin/steering/profileversion/evaluate.html", context)

    def _start_evaluation(self, request: HttpRequest, form: EvaluationForm) -> str:
        """Enqueue the job and return the URL of its page; return "" after adding an error to the form."""
        assert isinstance(request.user, User)
        try:
            job = create_evaluation(params=form.params, owner=request.user)
        except MillmError as error:
            form.add_error(None, str(error))
            return ""
        self.message_user(request, f'Queued "{job}". The report will appear on the version\'s page.', messages.SUCCESS)
        return reverse("admin:jobs_job_change", args=[job.pk])


def restore_version(request: HttpRequest, version: ProfileVersion) -> None:
    """Replace the draft of the version's profile by the version, and message the user."""
    try:
        services.new_draft_from(version=version)
    except MillmError as error:
        messages.error(request, f"{version} could not be restored: {error}")
    else:
        messages.success(request, f"Restored {version} as the draft of {version.profile}. Publish to use it.")
