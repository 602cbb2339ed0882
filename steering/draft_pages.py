"""The draft as it stands in a profile's form, before it is saved."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from steering.draft_form import Formsets, UnsavedDraft, read_cards, read_draft
from steering.draft_outcome import outcomes_of
from steering.models import SAE, FeatureEdit, SteeringProfile
from steering.profile_pages import ProfilePages
from steering.spec.units import FELT_PUSH, STRONG_PUSH


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
        found = outcomes_of(profile, read_cards(self._formsets(request, profile)))
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
