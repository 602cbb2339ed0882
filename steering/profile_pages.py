"""Pages of a profile's admin beside the form: publish, duplicate, restore a version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from steering import reviews, services
from steering.errors import InvalidProfileError, NothingToPublishError, ReviewError, SteeringError
from steering.forms import DuplicateForm, PublishForm
from steering.models import ProfileVersion, SteeringProfile
from steering.spec.rendering import fingerprint
from steering.version_pages import changes_from_latest, edits_html, restore, version_rows

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
