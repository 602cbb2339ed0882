"""Pages of a feature's admin beside the form: what it does, its logit lens, and “steer with this”."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from steering.errors import SteeringError
from steering.feature_forms import SteerForm
from steering.feature_services import steer_with_feature
from steering.feature_view import example_rows, histogram_picture
from steering.logit_lens import LensBusyError, LensSubject, LensUnavailableError, LogitLens, get_lens_worker
from steering.models import SAE, Feature
from steering.profiles.snapshot import source_of

_TEMPLATES = "admin/steering/feature"
_LENS_TIMEOUT_S = 60.0


class FeaturePages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """Every page checks permissions itself; whatever changes something is a POST."""

    change_form_template = f"{_TEMPLATES}/change_form.html"

    def get_urls(self) -> list[Any]:
        pages: Sequence[tuple[str, Callable[..., HttpResponse]]] = (
            ("lens", self.lens_view),
            ("steer", self.steer_view),
        )
        own = [
            path(f"<path:object_id>/{name}/", self.admin_site.admin_view(view), name=f"steering_feature_{name}")
            for name, view in pages
        ]
        return [*own, *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        feature = self.get_object(request, unquote(object_id))
        context = {**(extra_context or {})}
        if isinstance(feature, Feature):
            context |= self._facts(request, feature)
        return super().change_view(request, object_id, form_url, context)

    def lens_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """A part of the page, which loads it later: the first look at a model takes seconds."""
        feature = self._seen(request, object_id)
        context: dict[str, Any] = {"original": feature, "opts": self.opts}
        try:
            context["lens"] = _lens(feature)
        except LensUnavailableError as error:
            context["problem"] = str(error)
        except (LensBusyError, TimeoutError):
            context["problem"] = "Too many features are being looked at; try again in a moment."
        return TemplateResponse(request, f"{_TEMPLATES}/lens.html", context)

    def steer_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Adds the feature to a draft, or begins one with it, and goes there."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        feature = self._seen(request, object_id)
        form = SteerForm(feature, request.user, request.POST)
        if not form.may_steer:
            raise PermissionDenied
        if not form.is_valid():
            context = {"original": feature, "opts": self.opts, "steer": form, "title": f"Steer with {feature}"}
            return TemplateResponse(
                request, f"{_TEMPLATES}/steer.html", context | self.admin_site.each_context(request)
            )
        return self._steer(request, feature, form)

    def _steer(self, request: HttpRequest, feature: Feature, form: SteerForm) -> HttpResponse:
        try:
            profile = steer_with_feature(
                feature=feature,
                profile=form.cleaned_data["profile"],
                new_name=form.cleaned_data["new_name"],
                operation=form.cleaned_data["operation"],
                strength=form.cleaned_data["strength"],
                owner=request.user,  # type: ignore[arg-type]
            )
        except (SteeringError, ValidationError) as error:
            text = error.message if isinstance(error, SteeringError) else " ".join(error.messages)
            self.message_user(request, f"Nothing was added. {text}", messages.ERROR)
            return HttpResponseRedirect(feature_url(feature))
        self.message_user(
            request, f"{feature} is in the draft of {profile} now. Publish it to use it.", messages.SUCCESS
        )
        return HttpResponseRedirect(reverse("admin:steering_steeringprofile_change", args=[profile.pk]))

    def _facts(self, request: HttpRequest, feature: Feature) -> dict[str, Any]:
        sees_traffic = request.user.has_perm("openai_api.view_prompt_text")
        steer = SteerForm(feature, request.user)
        return {
            "sae": feature.sae,
            "share": None if feature.density is None else f"{feature.density:.3%}",
            "histogram": histogram_picture(feature.histogram),
            "examples": example_rows(feature.examples),
            "traffic_examples": example_rows(feature.traffic_examples) if sees_traffic else (),
            "steer": steer if steer.may_steer else None,
            "may_measure": request.user.has_perm("steering.change_sae"),
            "before": _neighbour(feature, -1),
            "after": _neighbour(feature, 1),
        }

    def _seen(self, request: HttpRequest, object_id: str) -> Feature:
        feature = self.get_object(request, unquote(object_id))
        if not isinstance(feature, Feature):
            raise Http404
        if not self.has_view_permission(request, feature):
            raise PermissionDenied
        return feature


def _neighbour(feature: Feature, step: int) -> Feature | None:
    found = Feature.objects.filter(sae_id=feature.sae_id, index=feature.index + step).only("sae_id", "index").first()
    if found is not None:
        found.sae = feature.sae
    return found


def feature_url(feature: Feature) -> str:
    """Its page, by the SAE's name and its index."""
    return reverse("admin:steering_feature_change", args=[quote(feature.reference)])


def _lens(feature: Feature) -> LogitLens:
    subject = LensSubject(
        feature.sae.model.model_source,
        source_of(feature.sae),
        feature.index,
        feature.sae.site != SAE.Site.ATTN_OUT,
    )
    return get_lens_worker().look_here(subject, _LENS_TIMEOUT_S)
