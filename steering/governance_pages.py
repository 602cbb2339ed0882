"""Pages of a profile's admin for its published versions: compare, roll back, archive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from steering import governance
from steering.errors import SteeringError
from steering.forms import CompareForm, RollBackForm
from steering.models import ProfileVersion, SteeringProfile
from steering.version_pages import changes_between, edits_table

_TEMPLATES = "admin/steering/steeringprofile"


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
            has_changes=governance.has_unpublished_changes(profile=profile),
        )
        if request.method == "POST" and form.is_valid():
            self._roll_back(request, profile, version, **form.cleaned_data)
            return HttpResponseRedirect(_url(profile))
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
            again = governance.roll_back(version=version, user=_user(request), note=note, replaces_draft=replaces_draft)
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
        act = governance.archive_profile if is_to_be_archived else governance.unarchive_profile
        done = "archived: requests cannot use it" if is_to_be_archived else "in use again"
        try:
            act(profile=profile, user=_user(request))
        except SteeringError as error:
            self.message_user(request, f"{profile} was not archived. {error}", messages.ERROR)
        else:
            self.log_change(request, profile, f"Now {done}.")
            self.message_user(request, f"{profile} is {done}.", messages.SUCCESS)
        return HttpResponseRedirect(_url(profile))

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
        return TemplateResponse(request, f"{_TEMPLATES}/{name}.html", context)


def _url(profile: SteeringProfile) -> str:
    return reverse("admin:steering_steeringprofile_change", args=[profile.pk])


def _user(request: HttpRequest) -> Any:
    return request.user
