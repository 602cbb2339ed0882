"""Profiles and their versions in the admin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django import forms
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

from core.read_only_admin import ReadOnlyAdmin
from steering import services
from steering.errors import InvalidProfileError, NothingToPublishError, ReviewError, SteeringError
from steering.evaluation.pages import EvaluationPages
from steering.exchange.pages import ExchangePages
from steering.models import SAE, FeatureEdit, ProfileReview, ProfileVersion, SteeringProfile
from steering.profiles import lifecycle, reviews
from steering.profiles.availability import profile_problem, version_problem
from steering.profiles.display import (
    changes_between,
    changes_from_latest,
    changes_since_previous,
    edits_html,
    edits_table,
    problem_text,
    requests_link,
    restore,
    version_rows,
)
from steering.profiles.draft_form import Formsets, UnsavedDraft, read_cards, read_draft
from steering.profiles.drafts import draft_words, record_draft
from steering.profiles.edit_inlines import FeatureEditInline, VectorEditInline
from steering.profiles.edit_preview import edit_previews
from steering.profiles.forms import CompareForm, DuplicateForm, PublishForm, RollBackForm
from steering.sharing import SharingAdmin
from steering.spec.rendering import fingerprint
from steering.spec.units import FELT_PUSH, STRONG_PUSH
from steering.visibility import SEE_ALL_PROFILES, visible_profiles, visible_versions

_TEMPLATES = "admin/steering/steeringprofile"


class ProfilePages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Every page checks permissions for its profile itself; whatever changes something is a POST."""

    def get_urls(self) -> list[Any]:
        pages: Sequence[tuple[str, str, Callable[..., HttpResponse]]] = (
            ("<path:object_id>/publish/", "publish", self.publish_view),
            ("<path:object_id>/duplicate/", "duplicate", self.duplicate_view),
            ("<path:object_id>/restore/<int:number>/", "restore", self.restore_view),
        )
        own = [
            path(route, self.admin_site.admin_view(view), name=f"steering_steeringprofile_{name}")
            for route, name, view in pages
        ]
        return [*own, *super().get_urls()]

    def has_publish_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("steering.publish_steeringprofile")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        profile = self.get_object(request, unquote(object_id))
        may = request.user.has_perm
        context = {"can_publish": self.has_publish_permission(request), **(extra_context or {})}
        context |= {"can_archive": may("steering.archive_steeringprofile"), "needs_review": reviews.is_needed()}
        if profile is not None:
            context |= {"versions": version_rows(profile), "draft_state": self._draft_state(profile)}
        return super().change_view(request, object_id, form_url, context)

    def response_add(
        self, request: HttpRequest, obj: SteeringProfile, post_url_continue: str | None = None
    ) -> HttpResponse:
        """A new profile has no edits yet: stay with it."""
        self.message_user(request, f"The profile {obj} was added. Now add edits, then publish it.", messages.SUCCESS)
        return HttpResponseRedirect(_url("change", obj))

    def response_change(self, request: HttpRequest, obj: SteeringProfile) -> HttpResponse:
        if "_publish" in request.POST:
            return HttpResponseRedirect(_url("publish", obj))
        return super().response_change(request, obj)

    def publish_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Shows what would be published and asks for a note; a POST publishes."""
        profile = self._profile(request, object_id)
        if not self.has_publish_permission(request):
            raise PermissionDenied
        form = PublishForm(request.POST or None)
        if request.method == "POST" and form.is_valid() and self._publish(request, profile, form.cleaned_data["note"]):
            return HttpResponseRedirect(_url("change", profile))
        return self._page(request, profile, "publish", f"Publish {profile}", form=form, **self._preview(profile))

    def duplicate_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        profile = self._profile(request, object_id)
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = DuplicateForm(profile, request.POST or None, initial={"name": free_name(profile)})
        if request.method == "POST" and form.is_valid():
            copy = services.duplicate_profile(profile=profile, name=form.cleaned_data["name"], user=_user(request))
            self.log_addition(request, copy, f"Duplicated from {profile}.")
            self.message_user(request, f"{copy} is a copy of the draft of {profile}.", messages.SUCCESS)
            return HttpResponseRedirect(_url("change", copy))
        return self._page(request, profile, "duplicate", f"Duplicate {profile}", form=form)

    def restore_view(self, request: HttpRequest, object_id: str, number: int) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        profile = self._profile(request, object_id)
        version = ProfileVersion.objects.filter(profile=profile, number=number).select_related("profile").first()
        if version is None:
            raise Http404
        restore(request, version)
        self.log_change(request, profile, f"Draft taken from {version}.")
        return HttpResponseRedirect(_url("change", profile))

    @admin.action(description="Publish…", permissions=["publish"])
    def publish_selected(self, request: HttpRequest, queryset: QuerySet[SteeringProfile]) -> HttpResponse | None:
        """Asks once for a note, then publishes one after the other; one that fails does not keep back the rest."""
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

    @admin.action(description="Duplicate", permissions=["add"])
    def duplicate_selected(self, request: HttpRequest, queryset: QuerySet[SteeringProfile]) -> None:
        for profile in queryset:
            copy = services.duplicate_profile(profile=profile, name=free_name(profile), user=_user(request))
            self.log_addition(request, copy, f"Duplicated from {profile}.")
            self.message_user(request, f"{copy} is a copy of the draft of {profile}.", messages.SUCCESS)

    def _profile(self, request: HttpRequest, object_id: str) -> SteeringProfile:
        profile = self.get_object(request, unquote(object_id))
        if profile is None:
            raise Http404
        if not self.has_change_permission(request, profile):
            raise PermissionDenied
        assert isinstance(profile, SteeringProfile)
        return profile

    def _publish(self, request: HttpRequest, profile: SteeringProfile, note: str) -> bool:
        try:
            version = services.publish_profile(profile=profile, user=_user(request), note=note)
        except (SteeringError, ValidationError) as error:
            self.message_user(request, f"{profile} was not published. {error}", messages.ERROR)
            return False
        self.log_change(request, profile, f"Published {version}.")
        self.message_user(
            request, f"Published {version}. The next request that names {profile} uses it.", messages.SUCCESS
        )
        return True

    def _preview(self, profile: SteeringProfile) -> dict[str, Any]:
        """What would be published, or why it cannot be."""
        try:
            edits = services.publishable_edits(profile)
        except InvalidProfileError as error:
            return {"problems": error.problems or (error.message,)}
        latest = profile.latest_version
        shown = {"edits": edits_html(edits), "latest": latest, "changes": changes_from_latest(profile, edits)}
        if reviews.is_needed():
            try:
                reviews.check_reviewed(profile=profile, edits=edits)
            except ReviewError as error:
                return shown | {"problems": (error.message,)}
        return shown

    def _draft_state(self, profile: SteeringProfile) -> str:
        """How the draft differs from what requests get."""
        if profile.archived_at is not None:
            return "It is archived: requests cannot use it."
        latest = profile.latest_version
        if latest is None:
            return "It was not published yet; requests cannot use it."
        try:
            edits = services.publishable_edits(profile)
        except NothingToPublishError:
            return f"Requests get {latest}, and the draft is the same."
        except InvalidProfileError as error:
            return f"Requests get {latest}. The draft cannot be published as it is: {error.message}"
        if fingerprint(edits) == latest.fingerprint:  # labels or measured numbers are newer than the version
            return f"Requests get {latest}, and the draft has the same effect."
        return f"Requests get {latest}; the draft differs from it."

    def _page(
        self, request: HttpRequest, profile: SteeringProfile, name: str, title: str, **context: Any
    ) -> HttpResponse:
        context |= {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "original": profile}
        return TemplateResponse(request, f"{_TEMPLATES}/{name}.html", context)


def free_name(profile: SteeringProfile) -> str:
    """A name for a copy that no profile of the model has."""
    taken = set(SteeringProfile.objects.filter(model_id=profile.model_id).values_list("name", flat=True))
    stem = profile.name[:90]
    number = next(number for number in range(1, len(taken) + 2) if _copy_name(stem, number) not in taken)
    return _copy_name(stem, number)


def _copy_name(stem: str, number: int) -> str:
    return f"{stem}-copy" if number == 1 else f"{stem}-copy-{number}"


def _url(page: str, profile: SteeringProfile) -> str:
    return reverse(f"admin:steering_steeringprofile_{page}", args=[profile.pk])


def _user(request: HttpRequest) -> Any:
    return request.user


class DraftPages(ProfilePages):
    """Reads what the form posts as saving it would, and writes nothing."""

    def get_urls(self) -> list[Any]:
        outcomes = self.admin_site.admin_view(require_POST(self.outcomes_view))
        return [
            path("<path:object_id>/outcomes/", outcomes, name="steering_steeringprofile_outcomes"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        profile = self.get_object(request, unquote(object_id))
        context = {"felt_push": FELT_PUSH, "strong_push": STRONG_PUSH, "preview_sae": _readable_sae(profile)}
        return super().change_view(request, object_id, form_url, {**context, **(extra_context or {})})

    def outcomes_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        profile = self._profile(request, object_id)
        found = edit_previews(profile, read_cards(self._formsets(request, profile)))
        return JsonResponse({"cards": [outcome.to_json() for outcome in found]})

    def unsaved_draft(self, request: HttpRequest, object_id: str) -> UnsavedDraft:
        """Of the form that ``request`` posts.

        Http404 and PermissionDenied as for the form, InvalidDraftError, SAEUnavailableError.
        """
        profile = self._profile(request, object_id)
        return read_draft(profile, self._formsets(request, profile))

    def _formsets(self, request: HttpRequest, profile: SteeringProfile) -> Formsets:
        formsets, inlines = self._create_formsets(request, profile, change=True)  # type: ignore[attr-defined]
        return {str(inline.verbose_name): formset for inline, formset in zip(inlines, formsets, strict=True)}


def _readable_sae(profile: SteeringProfile | None) -> str:
    """One by which a preview's tokens are read: what the draft edits with, rather than another one of the model."""
    if profile is None:
        return ""
    saes = SAE.objects.filter(model=profile.model_id).exclude(architecture__endswith="transcoder").order_by("pk")
    edited = FeatureEdit.objects.filter(profile=profile, feature__isnull=False).values("feature__sae")
    found = saes.filter(pk__in=edited).first() or saes.first()
    return found.name if found else ""


_TEMPLATE_FOLDER = "admin/steering/steeringprofile"


class GovernancePages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Every page checks permissions for its profile itself; whatever changes something is a POST."""

    def get_urls(self) -> list[Any]:
        pages: Sequence[tuple[str, str, Callable[..., HttpResponse]]] = (
            ("<path:object_id>/compare/", "compare", self.compare_view),
            ("<path:object_id>/roll-back/<int:number>/", "roll_back", self.roll_back_view),
            ("<path:object_id>/archive/", "archive", self.archive_view),
            ("<path:object_id>/unarchive/", "unarchive", self.unarchive_view),
        )
        own = [
            path(route, self.admin_site.admin_view(view), name=f"steering_steeringprofile_{name}")
            for route, name, view in pages
        ]
        return [*own, *super().get_urls()]

    def has_archive_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("steering.archive_steeringprofile")

    def compare_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """What differs between two versions, whichever."""
        profile = self._governed(request, object_id, may=self.has_view_permission(request))
        form = CompareForm(profile, request.GET)
        context: dict[str, Any] = {"form": form}
        if form.is_valid():
            before, after = form.cleaned_data["before"], form.cleaned_data["after"]
            context |= {"before": before, "after": after, "changes": changes_between(before, after)}
        return self._governance_page(request, profile, "compare", f"Compare versions of {profile}", **context)

    def roll_back_view(self, request: HttpRequest, object_id: str, number: int) -> HttpResponse:
        """Shows what would be published again and asks for a note; a POST publishes."""
        may = request.user.has_perm("steering.publish_steeringprofile")
        profile = self._governed(request, object_id, may=may)
        version = ProfileVersion.objects.filter(profile=profile, number=number).select_related("profile").first()
        latest = profile.latest_version
        if version is None or latest is None:
            raise Http404
        form = RollBackForm(
            request.POST or None,
            initial={"note": f"Rolled back to {version}."},
            has_changes=lifecycle.has_unpublished_changes(profile=profile),
        )
        if request.method == "POST" and form.is_valid():
            self._roll_back(request, profile, version, **form.cleaned_data)
            return HttpResponseRedirect(_change_url(profile))
        context = {"version": version, "latest": latest, "edits": edits_table(version), "form": form}
        context["changes"] = changes_between(latest, version)
        return self._governance_page(request, profile, "roll_back", f"Roll back to {version}", **context)

    def archive_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._archive(request, object_id, is_to_be_archived=True)

    def unarchive_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._archive(request, object_id, is_to_be_archived=False)

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
            again = lifecycle.roll_back(version=version, user=_staff(request), note=note, replaces_draft=replaces_draft)
        except SteeringError as error:
            self.message_user(request, f"{profile} was not rolled back. {error}", messages.ERROR)
            return
        self.log_change(request, profile, f"Rolled back to {version} as {again}.")
        draft = "The draft is the same." if replaces_draft else "The draft is unchanged."
        self.message_user(request, f"{again} is {version} again. The next request gets it. {draft}", messages.SUCCESS)

    def _archive(self, request: HttpRequest, object_id: str, *, is_to_be_archived: bool) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        profile = self._governed(request, object_id, may=self.has_archive_permission(request))
        act = lifecycle.archive_profile if is_to_be_archived else lifecycle.unarchive_profile
        done = "archived: requests cannot use it" if is_to_be_archived else "in use again"
        try:
            act(profile=profile, user=_staff(request))
        except SteeringError as error:
            self.message_user(request, f"{profile} was not archived. {error}", messages.ERROR)
        else:
            self.log_change(request, profile, f"Now {done}.")
            self.message_user(request, f"{profile} is {done}.", messages.SUCCESS)
        return HttpResponseRedirect(_change_url(profile))

    def _governed(self, request: HttpRequest, object_id: str, *, may: bool) -> SteeringProfile:
        profile = self.get_object(request, unquote(object_id))
        if profile is None:
            raise Http404
        if not may:
            raise PermissionDenied
        assert isinstance(profile, SteeringProfile)
        return profile

    def _governance_page(
        self, request: HttpRequest, profile: SteeringProfile, name: str, title: str, **context: Any
    ) -> HttpResponse:
        context |= {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "original": profile}
        return TemplateResponse(request, f"{_TEMPLATE_FOLDER}/{name}.html", context)


def _change_url(profile: SteeringProfile) -> str:
    return reverse("admin:steering_steeringprofile_change", args=[profile.pk])


def _staff(request: HttpRequest) -> Any:
    return request.user


_PAGE = "admin:steering_steeringprofile_review"


class ReviewForm(forms.Form):
    note = forms.CharField(
        max_length=2000,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60}),
        help_text="What should be looked at, or what was found. A rejection needs one.",
    )


class ReviewPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Who may change a profile may ask for a review; who may review may decide one of somebody else's."""

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.review_view)
        own = path("<path:object_id>/review/", view, name="steering_steeringprofile_review")
        return [own, *super().get_urls()]

    def review_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """What would be published, how far the review is, and what this user may do now."""
        profile = self.get_object(request, unquote(object_id))
        if profile is None:
            raise Http404
        if not self.has_view_permission(request, profile):
            raise PermissionDenied
        review = profile.reviews.select_related("requested_by", "decided_by").first()
        form = ReviewForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            self._act(request, profile, review, form.cleaned_data["note"])
            return HttpResponseRedirect(reverse(_PAGE, args=[profile.pk]))
        context = {"form": form, "review": review, **self._shown(request, profile, review)}
        context |= {**self.admin_site.each_context(request), "title": f"Review {profile}", "opts": self.opts}
        return TemplateResponse(request, "admin/steering/steeringprofile/review.html", context | {"original": profile})

    def _shown(self, request: HttpRequest, profile: SteeringProfile, review: ProfileReview | None) -> dict[str, Any]:
        may_ask = self.has_change_permission(request, profile)
        shown: dict[str, Any] = {"may_decide": _may_decide(request, profile, review), "may_ask": may_ask}
        draft = reviews.current_fingerprint(profile)
        shown["state"] = reviews.state_text(review, draft)
        try:
            edits = services.publishable_edits(profile)
        except InvalidProfileError as error:
            return shown | {"problems": error.problems or (error.message,), "may_ask": False}
        return shown | {"edits": edits_html(edits), "changes": changes_from_latest(profile, edits)}

    def _act(self, request: HttpRequest, profile: SteeringProfile, review: ProfileReview | None, note: str) -> None:
        wish = request.POST.get("wish")
        try:
            if wish == "ask":
                self._ask(request, profile, note)
            elif wish in ("approve", "reject") and review is not None:
                decided = reviews.decide_review(
                    review=review, user=_reviewer(request), is_approved=wish == "approve", note=note
                )
                self._say(request, profile, f"The draft of {profile} is {decided.get_state_display()}.")
        except SteeringError as error:
            self.message_user(request, error.message, messages.ERROR)

    def _ask(self, request: HttpRequest, profile: SteeringProfile, note: str) -> None:
        if not self.has_change_permission(request, profile):
            raise PermissionDenied
        reviews.request_review(profile=profile, user=_reviewer(request), note=note)
        self._say(request, profile, f"A review of {profile} is asked for.")

    def _say(self, request: HttpRequest, profile: SteeringProfile, text: str) -> None:
        self.log_change(request, profile, text)
        self.message_user(request, text, messages.SUCCESS)


def _may_decide(request: HttpRequest, profile: SteeringProfile, review: ProfileReview | None) -> bool:
    if review is None or reviews.current_fingerprint(profile) != review.fingerprint:
        return False
    try:
        reviews.check_may_decide(review=review, user=_reviewer(request))
    except ReviewError:
        return False
    return True


def _reviewer(request: HttpRequest) -> Any:
    return request.user


@admin.register(SteeringProfile)
class SteeringProfileAdmin(SharingAdmin, DraftPages, GovernancePages, ExchangePages, ReviewPages, admin.ModelAdmin):  # type: ignore[type-arg]
    """The draft with its edits; its other pages are those of the base classes."""

    owner_field = "owner"
    see_all = SEE_ALL_PROFILES

    empty_words = "No profile yet. Add one; or open a feature, and “Steer with this” begins one with it."
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
        """Clients and logs refer to a published name; edits refer to features of the model."""
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
        """In place of a list of all edits and versions: a line per profile, and what stands against deleting it.

        Nobody has a permission to delete versions, so Django would say that the permission is what is missing.
        """
        lines, protected = [], []
        for profile in objs:
            lines.append(f"steering profile {profile}")
            if latest := profile.latest_version:
                protected.append(
                    f"{latest}: a published profile is kept, because requests and the request log name it. Archive it"
                    " instead; requests cannot use it then."
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


@admin.register(ProfileVersion)
class ProfileVersionAdmin(EvaluationPages, ReadOnlyAdmin):
    """Read-only, whoever looks."""

    has_history = True
    empty_words = "Nothing is published yet. A profile's page publishes its draft as a version that requests can name."
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
        "used",
    )

    class Media:
        css = {"all": ("steering/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[ProfileVersion]:
        return visible_versions(request.user, super().get_queryset(request))

    def has_restore_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("steering.change_steeringprofile")

    @admin.action(description="Make it the draft of its profile", permissions=["restore"])
    def make_draft(self, request: HttpRequest, queryset: QuerySet[ProfileVersion]) -> None:
        versions = list(queryset.select_related("profile"))
        if len({version.profile_id for version in versions}) < len(versions):
            self.message_user(request, "Choose one version per profile.", messages.ERROR)
            return
        for version in versions:
            restore(request, version)

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

    @admin.display(description="used by")
    def used(self, version: ProfileVersion) -> SafeString | str:
        return requests_link(version)
