"""The admin of steering profiles: the draft's form, and the pages that publish, compare, roll back and archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.widgets import AdminTextareaWidget
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models
from django.db.models import Count, Max, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from core.errors import MillmError
from steering import services
from steering.errors import InvalidProfileError, SteeringError
from steering.evaluation.headline import profile_evidence
from steering.evaluation.params import HeadlineParams
from steering.evaluation.services import create_evaluation, draft_target
from steering.exchange.pages import ExchangePages
from steering.models import ProfileReview, ProfileVersion, SteeringProfile
from steering.profiles import lifecycle, reviews
from steering.profiles.availability import profile_problem
from steering.profiles.display import (
    changes_between,
    changes_from_latest,
    edits_html,
    edits_table,
    problem_text,
    version_rows,
)
from steering.profiles.draft_checks import publishable_edits
from steering.profiles.draft_form import Formsets, UnsavedDraft, read_cards, read_draft
from steering.profiles.draft_status import draft_state, free_name, may_decide, publish_context, readable_sae
from steering.profiles.drafts import draft_words, record_draft
from steering.profiles.edit_inlines import FeatureEditInline, VectorEditInline
from steering.profiles.edit_preview import edit_previews
from steering.profiles.forms import CompareForm, DuplicateForm, PublishForm, ReviewForm, RollBackForm
from steering.profiles.version_admin import restore_version
from steering.sharing import SharingAdmin
from steering.spec.units import FELT_PUSH, STRONG_PUSH
from steering.visibility import SEE_ALL_PROFILES, visible_profiles

_TEMPLATES = "admin/steering/steeringprofile"


@admin.register(SteeringProfile)
class SteeringProfileAdmin(SharingAdmin, ExchangePages, admin.ModelAdmin):  # type: ignore[type-arg]
    """The draft's form, and the pages of a profile. Each page checks permissions itself; every write is a POST."""

    owner_field = "owner"
    see_all = SEE_ALL_PROFILES

    empty_words = 'No profiles yet. Add one, or open a feature and select "Steer with this".'
    list_display = ("name", "model", "published", "num_edits", "owner", "is_in_use", "problem", "updated_at")
    list_filter = ("model", ("owner", admin.RelatedOnlyFieldListFilter), ("archived_at", admin.EmptyFieldListFilter))
    list_select_related = ("model", "owner")
    search_fields = ("name", "description")
    autocomplete_fields = ("model",)
    inlines = (FeatureEditInline, VectorEditInline)
    actions = ("publish_selected", "duplicate_selected")
    fields = ("name", "model", "description", "shared_with")
    formfield_overrides = {models.TextField: {"widget": AdminTextareaWidget(attrs={"rows": 2})}}

    class Media:
        css = {"all": ("steering/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[SteeringProfile]:
        rows: QuerySet[SteeringProfile] = visible_profiles(request.user, super().get_queryset(request))
        return rows.annotate(newest=Max("versions__number"), edit_count=Count("edits", distinct=True))

    def get_inlines(self, request: HttpRequest, obj: SteeringProfile | None) -> Any:
        return self.inlines if obj else ()

    def get_readonly_fields(self, request: HttpRequest, obj: SteeringProfile | None = None) -> tuple[str, ...]:
        """Fix the name after publishing, because clients and logs refer to it, and the model, because edits do."""
        if obj is None:
            return ()
        fixed = ("name", "model") if obj.versions.exists() else ("model",)
        return fixed if self.may_share(request, obj) else (*fixed, "shared_with")

    def save_model(self, request: HttpRequest, obj: SteeringProfile, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        if not change:
            obj.owner = request.user  # type: ignore[assignment]
        services.save_profile(profile=obj, user=request.user)  # type: ignore[arg-type]  # staff

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        profile = form.instance
        before = draft_words(profile)
        super().save_related(request, form, formsets, change)
        record_draft(profile=profile, before=before, user=request.user)  # type: ignore[arg-type]  # staff

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """List one line per profile, and the reasons why a profile cannot be deleted.

        Django would list all edits and versions, and report a missing permission for versions, which nobody has.
        """
        lines, protected = [], []
        for profile in objs:
            lines.append(f"steering profile {profile}")
            if latest := profile.latest_version:
                protected.append(
                    f"{latest}: published profiles can't be deleted, because requests and the log refer to them."
                    " Archive it instead; requests can't use an archived profile."
                )
        needed = set() if self.has_delete_permission(request) else {self.opts.verbose_name}
        return lines, {"steering profiles": len(lines)}, needed, protected

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        profile = self.get_object(request, unquote(object_id))
        can_archive = isinstance(profile, SteeringProfile) and profile.archived_at is None
        context = {**(extra_context or {}), "can_archive": can_archive and self.has_archive_permission(request)}
        return super().delete_view(request, object_id, context)

    def delete_model(self, request: HttpRequest, obj: SteeringProfile) -> None:
        services.delete_profile(profile=obj, user=request.user)  # type: ignore[arg-type]  # staff

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[SteeringProfile]) -> None:
        for profile in queryset.select_related("model"):
            services.delete_profile(profile=profile, user=request.user)  # type: ignore[arg-type]  # staff

    @admin.display(description="published", ordering="newest", empty_value="not yet")
    def published(self, profile: SteeringProfile) -> str | None:
        newest: int | None = profile.newest  # type: ignore[attr-defined]
        return None if newest is None else f"{profile.name}@{newest}"

    @admin.display(description="in use", ordering="archived_at", boolean=True)
    def is_in_use(self, profile: SteeringProfile) -> bool:
        return profile.archived_at is None

    @admin.display(description="problem")
    def problem(self, profile: SteeringProfile) -> SafeString | str:
        return problem_text(profile_problem(profile))

    @admin.display(description="edits", ordering="edit_count")
    def num_edits(self, profile: SteeringProfile) -> int:
        return int(profile.edit_count)  # type: ignore[attr-defined]

    def get_urls(self) -> list[Any]:
        pages: dict[str, Callable[..., HttpResponse]] = {
            "publish": self.publish_view,
            "duplicate": self.duplicate_view,
            "compare": self.compare_view,
            "archive": self.archive_view,
            "unarchive": self.unarchive_view,
            "review": self.review_view,
            "outcomes": require_POST(self.outcomes_view),
            "measure": require_POST(self.measure_view),
        }
        numbered: dict[str, Callable[..., HttpResponse]] = {
            "restore": self.restore_view,
            "roll_back": self.roll_back_view,
        }
        routes = [(f"<path:object_id>/{name}/", name, view) for name, view in pages.items()]
        routes += [
            (f"<path:object_id>/{name.replace('_', '-')}/<int:number>/", name, view) for name, view in numbered.items()
        ]
        own = [
            path(route, self.admin_site.admin_view(view), name=f"steering_steeringprofile_{name}")
            for route, name, view in routes
        ]
        return [*own, *super().get_urls()]

    def has_publish_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("steering.publish_steeringprofile")

    def has_archive_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("steering.archive_steeringprofile")

    # The draft's form

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        profile = self.get_object(request, unquote(object_id))
        context = {
            "can_publish": self.has_publish_permission(request),
            "felt_push": FELT_PUSH,
            "strong_push": STRONG_PUSH,
            "preview_sae": readable_sae(profile),
            **(extra_context or {}),
            "can_archive": self.has_archive_permission(request),
            "needs_review": reviews.is_needed(),
        }
        if profile is not None:
            context |= {"versions": version_rows(profile), "draft_state": draft_state(profile)}
            context["evidence"] = profile_evidence(profile)
        return super().change_view(request, object_id, form_url, context)

    def response_add(
        self, request: HttpRequest, obj: SteeringProfile, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Stay on the page: a new profile has no edits yet."""
        self.message_user(request, f"Added profile {obj}. Add edits, then publish it.", messages.SUCCESS)
        return HttpResponseRedirect(_url("change", obj))

    def response_change(self, request: HttpRequest, obj: SteeringProfile) -> HttpResponse:
        if "_publish" in request.POST:
            return HttpResponseRedirect(_url("publish", obj))
        return super().response_change(request, obj)

    def outcomes_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Return a preview of each edit of the posted form as JSON. Nothing is written."""
        profile = self._editable_profile(request, object_id)
        previews = edit_previews(profile, read_cards(self._formsets(request, profile)))
        return JsonResponse({"cards": [preview.to_json() for preview in previews]})

    def measure_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Enqueue a job that measures the headline KL of the live version or the draft."""
        profile = self._editable_profile(request, object_id)
        latest = profile.latest_version
        try:
            is_live = request.POST.get("target") == "version" and latest is not None
            target = latest.pk if is_live and latest else draft_target(profile=profile)
            job = create_evaluation(params=HeadlineParams(target), owner=_user(request))
        except MillmError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(_url("change", profile))
        self.message_user(request, f'Queued "{job}". The figure will appear on the profile\'s page.', messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:jobs_job_change", args=[job.pk]))

    def unsaved_draft(self, request: HttpRequest, object_id: str) -> UnsavedDraft:
        """Return the draft that saving the posted form would make. Nothing is written.

        Raises Http404 and PermissionDenied as the form does, InvalidDraftError, or SAEUnavailableError.
        """
        profile = self._editable_profile(request, object_id)
        return read_draft(profile, self._formsets(request, profile))

    def _formsets(self, request: HttpRequest, profile: SteeringProfile) -> Formsets:
        formsets, inlines = self._create_formsets(request, profile, change=True)  # type: ignore[attr-defined]
        return {str(inline.verbose_name): formset for inline, formset in zip(inlines, formsets, strict=True)}

    # Publish, duplicate, restore

    def publish_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show what would be published and ask for a note; a POST publishes."""
        profile = self._editable_profile(request, object_id)
        if not self.has_publish_permission(request):
            raise PermissionDenied
        form = PublishForm(request.POST or None)
        if request.method == "POST" and form.is_valid() and self._publish(request, profile, form.cleaned_data["note"]):
            return HttpResponseRedirect(_url("change", profile))
        return self._page(request, profile, "publish", f"Publish {profile}", form=form, **publish_context(profile))

    @admin.action(description="Publish…", permissions=["publish"])
    def publish_selected(self, request: HttpRequest, queryset: QuerySet[SteeringProfile]) -> HttpResponse | None:
        """Ask once for a note, then publish each profile; a failure does not stop the others."""
        form = PublishForm(request.POST if "note" in request.POST else None)
        if form.is_valid():
            for profile in queryset:
                if self.has_change_permission(request, profile):
                    self._publish(request, profile, form.cleaned_data["note"])
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": "Publish profiles",
            "opts": self.opts,
            "profiles": queryset,
            "form": form,
        }
        return TemplateResponse(request, f"{_TEMPLATES}/publish_selected.html", context)

    def duplicate_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        profile = self._editable_profile(request, object_id)
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = DuplicateForm(profile, request.POST or None, initial={"name": free_name(profile)})
        if request.method == "POST" and form.is_valid():
            copy = self._duplicate(request, profile, form.cleaned_data["name"])
            return HttpResponseRedirect(_url("change", copy))
        return self._page(request, profile, "duplicate", f"Duplicate {profile}", form=form)

    @admin.action(description="Duplicate", permissions=["add"])
    def duplicate_selected(self, request: HttpRequest, queryset: QuerySet[SteeringProfile]) -> None:
        for profile in queryset:
            self._duplicate(request, profile, free_name(profile))

    def restore_view(self, request: HttpRequest, object_id: str, number: int) -> HttpResponse:
        """Replace the draft by a published version."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        profile = self._editable_profile(request, object_id)
        version = _version(profile, number)
        restore_version(request, version)
        self.log_change(request, profile, f"Draft restored from {version}.")
        return HttpResponseRedirect(_url("change", profile))

    def _publish(self, request: HttpRequest, profile: SteeringProfile, note: str) -> bool:
        try:
            version = services.publish_profile(profile=profile, user=_user(request), note=note)
        except (SteeringError, ValidationError) as error:
            self.message_user(request, f"{profile} was not published. {error}", messages.ERROR)
            return False
        self.log_change(request, profile, f"Published {version}.")
        self.message_user(request, f"Published {version}. New requests use it.", messages.SUCCESS)
        return True

    def _duplicate(self, request: HttpRequest, profile: SteeringProfile, name: str) -> SteeringProfile:
        copy = services.duplicate_profile(profile=profile, name=name, user=_user(request))
        self.log_addition(request, copy, f"Duplicated from {profile}.")
        self.message_user(request, f"Duplicated {profile} as {copy}.", messages.SUCCESS)
        return copy

    # Compare, roll back, archive

    def compare_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the differences between any two versions."""
        profile = self._permitted_profile(request, object_id, is_permitted=self.has_view_permission(request))
        form = CompareForm(profile, request.GET)
        context: dict[str, Any] = {"form": form}
        if form.is_valid():
            before, after = form.cleaned_data["before"], form.cleaned_data["after"]
            context |= {"before": before, "after": after, "changes": changes_between(before, after)}
        return self._page(request, profile, "compare", f"Compare versions of {profile}", **context)

    def roll_back_view(self, request: HttpRequest, object_id: str, number: int) -> HttpResponse:
        """Show what would be published again and ask for a note; a POST publishes."""
        profile = self._permitted_profile(request, object_id, is_permitted=self.has_publish_permission(request))
        version, latest = _version(profile, number), profile.latest_version
        assert latest is not None
        form = RollBackForm(
            request.POST or None,
            initial={"note": f"Rolled back to {version}."},
            has_changes=lifecycle.has_unpublished_changes(profile=profile),
        )
        if request.method == "POST" and form.is_valid():
            self._roll_back(request, profile, version, **form.cleaned_data)
            return HttpResponseRedirect(_url("change", profile))
        context = {"version": version, "latest": latest, "edits": edits_table(version), "form": form}
        context["changes"] = changes_between(latest, version)
        return self._page(request, profile, "roll_back", f"Roll back to {version}", **context)

    def archive_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._set_archived(request, object_id, is_archived=True)

    def unarchive_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._set_archived(request, object_id, is_archived=False)

    def _roll_back(
        self,
        request: HttpRequest,
        profile: SteeringProfile,
        version: ProfileVersion,
        *,
        note: str,
        replaces_draft: bool,
    ) -> None:
        try:
            again = lifecycle.roll_back(version=version, user=_user(request), note=note, replaces_draft=replaces_draft)
        except SteeringError as error:
            self.message_user(request, f"{profile} was not rolled back. {error}", messages.ERROR)
            return
        self.log_change(request, profile, f"Rolled back to {version} as {again}.")
        draft = "The draft was replaced too." if replaces_draft else "The draft is unchanged."
        text = f"Rolled back to {version}, published as {again}. New requests use it. {draft}"
        self.message_user(request, text, messages.SUCCESS)

    def _set_archived(self, request: HttpRequest, object_id: str, *, is_archived: bool) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        profile = self._permitted_profile(request, object_id, is_permitted=self.has_archive_permission(request))
        change = lifecycle.archive_profile if is_archived else lifecycle.unarchive_profile
        verb = "archived" if is_archived else "unarchived"
        try:
            change(profile=profile, user=_user(request))
        except SteeringError as error:
            self.message_user(request, f"{profile} was not {verb}. {error}", messages.ERROR)
        else:
            self.log_change(request, profile, f"{verb.capitalize()}.")
            effect = " Requests can't use it." if is_archived else ""
            self.message_user(request, f"{verb.capitalize()} {profile}.{effect}", messages.SUCCESS)
        return HttpResponseRedirect(_url("change", profile))

    # Review

    def review_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show what would be published and the state of its review; a POST requests or decides a review.

        Users who may change a profile may request a review; reviewers may decide the requests of other users.
        """
        profile = self._find_profile(request, object_id)
        if not self.has_view_permission(request, profile):
            raise PermissionDenied
        review = profile.reviews.select_related("requested_by", "decided_by").first()
        form = ReviewForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            self._submit_review(request, profile, review, form.cleaned_data["note"])
            return HttpResponseRedirect(_url("review", profile))
        context = {"form": form, "review": review, **self._review_context(request, profile, review)}
        return self._page(request, profile, "review", f"Review {profile}", **context)

    def _review_context(
        self, request: HttpRequest, profile: SteeringProfile, review: ProfileReview | None
    ) -> dict[str, Any]:
        may_ask = self.has_change_permission(request, profile)
        context: dict[str, Any] = {"may_decide": may_decide(_user(request), profile, review), "may_ask": may_ask}
        context["state"] = reviews.state_text(review, reviews.current_fingerprint(profile))
        try:
            edits = publishable_edits(profile)
        except InvalidProfileError as error:
            return context | {"problems": error.problems or (error.message,), "may_ask": False}
        return context | {"edits": edits_html(edits), "changes": changes_from_latest(profile, edits)}

    def _submit_review(
        self, request: HttpRequest, profile: SteeringProfile, review: ProfileReview | None, note: str
    ) -> None:
        decision = request.POST.get("decision")
        try:
            if decision == "request":
                self._request_review(request, profile, note)
            elif decision in ("approve", "reject") and review is not None:
                decided = reviews.decide_review(
                    review=review, user=_user(request), is_approved=decision == "approve", note=note
                )
                self._log_and_tell(request, profile, f"The draft of {profile} is {decided.get_state_display()}.")
        except SteeringError as error:
            self.message_user(request, error.message, messages.ERROR)

    def _request_review(self, request: HttpRequest, profile: SteeringProfile, note: str) -> None:
        if not self.has_change_permission(request, profile):
            raise PermissionDenied
        reviews.request_review(profile=profile, user=_user(request), note=note)
        self._log_and_tell(request, profile, f"Requested a review of {profile}.")

    def _log_and_tell(self, request: HttpRequest, profile: SteeringProfile, text: str) -> None:
        self.log_change(request, profile, text)
        self.message_user(request, text, messages.SUCCESS)

    # Shared by the pages

    def _find_profile(self, request: HttpRequest, object_id: str) -> SteeringProfile:
        profile = self.get_object(request, unquote(object_id))
        if profile is None:
            raise Http404
        assert isinstance(profile, SteeringProfile)
        return profile

    def _permitted_profile(self, request: HttpRequest, object_id: str, *, is_permitted: bool) -> SteeringProfile:
        profile = self._find_profile(request, object_id)
        if not is_permitted:
            raise PermissionDenied
        return profile

    def _editable_profile(self, request: HttpRequest, object_id: str) -> SteeringProfile:
        profile = self._find_profile(request, object_id)
        if not self.has_change_permission(request, profile):
            raise PermissionDenied
        return profile

    def _page(
        self, request: HttpRequest, profile: SteeringProfile, name: str, title: str, **context: Any
    ) -> HttpResponse:
        context |= {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "original": profile}
        return TemplateResponse(request, f"{_TEMPLATES}/{name}.html", context)


def _version(profile: SteeringProfile, number: int) -> ProfileVersion:
    version = ProfileVersion.objects.filter(profile=profile, number=number).select_related("profile").first()
    if version is None:
        raise Http404
    return version


def _url(page: str, profile: SteeringProfile) -> str:
    return reverse(f"admin:steering_steeringprofile_{page}", args=[profile.pk])


def _user(request: HttpRequest) -> Any:
    return request.user
