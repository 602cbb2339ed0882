"""The page of a vector: what it writes, what it resembles, where it acts, who uses it, and a panel that steers with it.

It is the page of its set, which shows one vector at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from core.errors import MillmError
from steering.effects.job import request_vector_effects
from steering.errors import SteeringError
from steering.evaluation.headline import find_headlines
from steering.features.admin import TEST_PERMISSION, lens_context
from steering.features.drawing import centred_row
from steering.features.forms import MAX_TESTED
from steering.features.logit_lens import VectorLensTarget
from steering.features.neighbours import find_features_near
from steering.features.tested_text import products_on
from steering.models import (
    SAE,
    Evaluation,
    FeatureEdit,
    HeadlineKL,
    PlainVector,
    ProfileVersion,
    VectorEffect,
    VectorSet,
    WatchRule,
)
from steering.profiles.drafts import edit_of, residual_norm
from steering.profiles.edit_preview import calibrated_strength, edit_choices
from steering.profiles.snapshot import source_of
from steering.spec.edit import EditSpec, VectorTarget
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import parse_edits
from steering.spec.units import Unit
from steering.spec.wording import describe_action
from steering.visibility import visible_evaluations, visible_profiles, visible_vectors, visible_versions

DEFAULT_PUSH = 0.1  # of the residual's norm: how strong the panel begins where no profile uses the vector
NUM_NEAR = 10
MAX_COMPARED = 500  # vectors
MAX_USES = 20
_TEMPLATES = "admin/steering/vectorset"


@dataclass(frozen=True, slots=True)
class VectorUse:
    """A published version or a draft that steers with the vector. ``calibrated`` is a sentence, "" without one."""

    label: str
    url: str
    action: str
    kl: HeadlineKL | None = None
    calibrated: str = ""


@dataclass(frozen=True, slots=True)
class NearVector:
    vector: PlainVector
    url: str
    cosine: float


def starting_strength(vector: PlainVector, norm: float | None) -> tuple[float, Unit]:
    """Return the strength with which pages begin to steer with a vector, and its unit: the calibrated one if its effect
    was measured. ``norm``: the mean residual norm at its site; where it is unknown, the vector is added as it is."""
    effect: VectorEffect | None = getattr(vector, "effect", None)
    unit: Unit = "resid_norm" if norm else "raw"
    if effect is not None and (strength := effect.in_unit(unit)):
        return float(f"{strength:.3g}"), unit
    return (DEFAULT_PUSH, unit) if norm else (1.0, unit)


def vector_url(vector: PlainVector) -> str:
    """Return the URL of the page of a vector."""
    page = reverse("admin:steering_vectorset_change", args=[vector.vector_set_id])
    return f"{page}?vector={vector.pk}"


def vector_facts(vector: PlainVector, norm: float | None) -> dict[str, str]:
    """Return what facts.html shows beside the vector: its norm, the residual's ``norm`` at its site, and the ratio."""
    return {
        "size": f"{vector.norm:.4g}",
        "residual_norm": f"{norm:.3g}" if norm else "",
        "push": f"{vector.norm / norm:.3g}" if norm else "",
    }


def vector_lens_target(vector: PlainVector) -> VectorLensTarget:
    return VectorLensTarget(
        vector.vector_set.model.model_source, bytes(vector.data), vector.site not in SAE.OUTSIDE_RESIDUAL
    )


class VectorPages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """The views of a set's page beside Django's own."""

    def get_urls(self) -> list[Any]:
        effects = self.admin_site.admin_view(self.effects_view)
        pages = (("lens", self.lens_view), ("neighbours", self.neighbours_view), ("test", self.test_view))
        own = [
            path(f"vectors/<int:pk>/{name}/", self.admin_site.admin_view(view), name=f"steering_vectorset_{name}")
            for name, view in pages
        ]
        own.append(path("<int:pk>/effects/", effects, name="steering_vectorset_effects"))
        return [*own, *super().get_urls()]

    def vector_context(self, request: HttpRequest, vector_set: VectorSet) -> dict[str, Any]:
        """Return what the page shows of the selected vector; nothing for a set without vectors."""
        vectors = list(vector_set.vectors.select_related("effect").defer("data"))
        chosen = request.GET.get("vector", "")
        vector = next((one for one in vectors if str(one.pk) == chosen), vectors[0] if vectors else None)
        if vector is None:
            return {}
        vector.vector_set = vector_set
        norm = residual_norm(vector)
        uses = list(_uses(request, vector))
        return {
            "vector": vector,
            "vectors": vectors,
            **vector_facts(vector, norm),
            "uses": uses,
            "effect": getattr(vector, "effect", None),
            "may_measure": self.has_change_permission(request, vector_set),
            "evaluations": _evaluations(request, vector),
            "rules": WatchRule.objects.filter(vector=vector)
            if request.user.has_perm("steering.view_watchrule")
            else (),
            "may_test": request.user.has_perm(TEST_PERMISSION),
            "test_text": request.GET.get("text", "").strip()[:MAX_TESTED],
            "try_json": json.dumps(_trial(vector, norm)),
        }

    def lens_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Render the logit lens. The page loads it separately, because the first one of a model takes seconds."""
        vector = self._seen(request, pk)
        context = {"original": vector.vector_set, "opts": self.opts, **lens_context(vector_lens_target(vector))}
        return TemplateResponse(request, "admin/steering/feature/lens.html", context)

    def neighbours_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Render the features and vectors of similar direction. Loaded separately, because it may load an SAE."""
        vector = self._seen(request, pk)
        context: dict[str, Any] = {"original": vector.vector_set, "opts": self.opts}
        if request.user.has_perm("steering.view_feature"):
            context |= _near_features(vector)
        context["near_vectors"] = _near_vectors(request, vector)
        return TemplateResponse(request, f"{_TEMPLATES}/neighbours.html", context)

    def test_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Render the product of vector and residual on each token of a text, computed in the engine."""
        vector = self._seen(request, pk)
        if not request.user.has_perm(TEST_PERMISSION):
            raise PermissionDenied
        context: dict[str, Any] = {"original": vector.vector_set, "opts": self.opts, "is_active": True}
        try:
            found = products_on(vector, request.GET.get("text", "")[:MAX_TESTED])
        except MillmError as error:
            context["problem"] = error.message
        else:
            context["tested"] = [centred_row(found["tokens"], found["values"])] if found["tokens"] else []
        return TemplateResponse(request, "admin/steering/feature/tested.html", context)

    def effects_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Start the job that measures the effects of the set's vectors."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        vector_set = self.get_object(request, str(pk))
        if vector_set is None:
            raise Http404
        if not self.has_change_permission(request, vector_set):
            raise PermissionDenied
        replaces = "replaces" in request.POST
        job = request_vector_effects(vector_set=vector_set, replaces=replaces, owner=request.user)  # type: ignore[arg-type]  # staff
        self.log_change(request, vector_set, "Started measuring effects.")
        return HttpResponseRedirect(reverse("admin:jobs_job_change", args=[job.pk]))

    def _seen(self, request: HttpRequest, pk: int) -> PlainVector:
        found = visible_vectors(request.user).select_related("vector_set__model").filter(pk=pk).first()
        if found is None:
            raise Http404
        if not self.has_view_permission(request, found.vector_set):
            raise PermissionDenied
        return found


def _trial(vector: PlainVector, norm: float | None) -> dict[str, Any]:
    """Return what the panel needs that steers with the vector: the edit that it begins with, and what it offers."""
    vector_set = vector.vector_set
    strength, unit = starting_strength(vector, norm)
    edit = {
        "set": vector_set.name,
        "layer": vector.layer,
        "site": vector.site,
        "operation": "add",
        "strength": strength,
        "unit": unit,
        "phase": "both",
    }
    sae = SAE.objects.filter(model=vector_set.model_id).order_by("name").values_list("name", flat=True).first()
    return {**edit_choices(), "model": vector_set.model.name, "sae": sae, "edit": edit}


def _uses(request: HttpRequest, vector: PlainVector) -> Iterator[VectorUse]:
    """Yield the newest published version of each profile that has the vector, and then drafts."""
    if request.user.has_perm("steering.view_profileversion"):
        versions = visible_versions(request.user).filter(vector_links__vector=vector).select_related("profile__model")
        newest = list(
            versions.order_by("profile__name", "profile_id", "-number").distinct("profile__name", "profile_id")
        )
        yield from _version_uses(vector, newest[:MAX_USES])
    if request.user.has_perm("steering.view_steeringprofile"):
        profiles = visible_profiles(request.user).order_by().values("pk")
        rows = FeatureEdit.objects.filter(plain_vector=vector, profile__in=profiles, profile__archived_at=None)
        for row in rows.select_related("profile__model", "plain_vector__vector_set").order_by("profile__name")[
            :MAX_USES
        ]:
            url = reverse("admin:steering_steeringprofile_change", args=[row.profile_id])
            yield VectorUse(f"{row.profile} (draft)", url, _action(row))


def _action(row: FeatureEdit) -> str:
    try:
        return describe_action(edit_of(row))
    except InvalidSpecError as error:
        return error.problems[0].message


def _version_uses(vector: PlainVector, versions: list[ProfileVersion]) -> Iterator[VectorUse]:
    headlines: Mapping[str, HeadlineKL] = {}
    if versions:
        headlines = find_headlines(versions[0].profile.model, [version.fingerprint for version in versions])
    for version in versions:
        edits = [edit for edit in parse_edits(version.edits) if _is_of(edit, vector)]
        calibrated = next((found for edit in edits if (found := calibrated_strength(version.profile, edit))), None)
        yield VectorUse(
            str(version),
            reverse("admin:steering_profileversion_change", args=[version.pk]),
            "; ".join(map(describe_action, edits)) or "only as a condition",
            headlines.get(version.fingerprint),
            "" if calibrated is None else calibrated.words,
        )


def _is_of(edit: EditSpec, vector: PlainVector) -> bool:
    target = edit.target
    return isinstance(target, VectorTarget) and (target.name, target.site) == (vector.vector_set.name, vector.place)


def _evaluations(request: HttpRequest, vector: PlainVector) -> list[Evaluation]:
    """Return the newest evaluations of versions with the vector."""
    if not request.user.has_perm("steering.view_evaluation"):
        return []
    rows = visible_evaluations(request.user).filter(version__vector_links__vector=vector)
    return list(rows.select_related("version__profile", "other__profile").defer("result")[:NUM_NEAR])


def _near_features(vector: PlainVector) -> dict[str, Any]:
    """Return the features of the SAE whose site is nearest, with links; a problem if there is none."""
    sae = _nearest_sae(vector)
    if sae is None:
        return {"problem": "No SAE of this model writes where the vector does."}
    try:
        near = find_features_near(sae.pk, source_of(sae), bytes(vector.data), NUM_NEAR)
    except SteeringError as error:
        return {"problem": error.message}
    rows = [(row, reverse("admin:steering_feature_change", args=[quote(f"{sae.name}.{row.index}")])) for row in near]
    return {"neighbours": rows, "sae": sae}


def _nearest_sae(vector: PlainVector) -> SAE | None:
    """Return an SAE at the vector's site, else one that writes to the residual too, at the nearest layer."""
    width = len(vector.data) // 4
    rows = list(SAE.objects.filter(model=vector.vector_set.model_id, d_in=width))
    here = [sae for sae in rows if (sae.layer, sae.site) == (vector.layer, vector.site)]
    if vector.site in SAE.OUTSIDE_RESIDUAL:
        return min(here, key=lambda sae: sae.name, default=None)
    others = [sae for sae in rows if sae.site not in SAE.OUTSIDE_RESIDUAL]
    return min(here or others, key=lambda sae: (abs(sae.layer - vector.layer), sae.name), default=None)


def _near_vectors(request: HttpRequest, vector: PlainVector) -> list[NearVector]:
    """Return the registered vectors of the model with the largest cosine, of those with the same number of values."""
    rows = visible_vectors(request.user).filter(vector_set__model=vector.vector_set.model_id).exclude(pk=vector.pk)
    others = [
        row
        for row in rows.select_related("vector_set").order_by("pk")[:MAX_COMPARED]
        if len(row.data) == len(vector.data) and row.norm
    ]
    if not others or not vector.norm:
        return []
    matrix = np.stack([np.frombuffer(bytes(row.data), "<f4") for row in others])
    products = np.einsum("nd,d->n", matrix, np.frombuffer(bytes(vector.data), "<f4"))
    found = [
        NearVector(row, vector_url(row), float(product) / (row.norm * vector.norm))
        for row, product in zip(others, products, strict=True)
    ]
    return sorted(found, key=lambda near: -near.cosine)[:NUM_NEAR]
