"""The playground's page, its choices, and the endpoints that it reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from console.pages import Endpoint, Page, register_endpoint, register_page
from console.playground.answers import PERMISSION
from core.errors import MillmError
from inference.models import LanguageModel
from inference.registry.records import ModelNotFoundError
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.http.json_body import read_json_object
from openai_api.http.session_auth import refusal_response
from steering.evaluation.headline import find_headlines
from steering.features.admin import feature_url
from steering.models import SAE, Feature, ProfileVersion, SteeringProfile
from steering.profiles.edit_preview import edit_choices
from steering.profiles.inline_edits import read_inline
from steering.services import create_profile
from steering.spec.parsing import parse_edits
from steering.visibility import visible_profiles

VERSIONS = 10  # latest versions offered for each profile


def context(request: HttpRequest) -> Mapping[str, Any]:
    user: Any = request.user
    models = [_model(user, model) for model in LanguageModel.objects.filter(kind="generation").order_by("name")]
    choices = {
        "models": models,
        **edit_choices(),
        "needs_key": settings.MILLM_AUTH == "required",
        "urls": _urls(),
    }
    return {
        "models": models,
        "may_draft": user.has_perm("steering.add_steeringprofile"),
        "may_register": user.has_perm("inference.add_languagemodel"),
        "sees_log": user.has_perm("openai_api.view_requestlog"),
        "choices_json": json.dumps(choices),
    }


def _urls() -> dict[str, str]:
    return {
        "chat": reverse("playground-chat"),
        "completion": reverse("playground-completion"),
        "inspect": reverse("playground-inspect"),
        "explain": reverse("playground-explain"),
        "features": reverse("admin:console_playground_features"),
        "labels": reverse("admin:console_playground_labels"),
        "feature": reverse("admin:console_playground_feature"),
        "draft": reverse("admin:console_playground_draft"),
        "recipe": reverse("admin:steering_evaluation_recipe"),
        "log": reverse("admin:index") + "openai_api/requestlog/",
    }


def _model(user: Any, model: LanguageModel) -> dict[str, Any]:
    saes = SAE.objects.filter(model=model).order_by("name").values_list("name", flat=True)
    profiles = _profiles(user, model) if user.has_perm("steering.view_steeringprofile") else []
    return {"name": model.name, "state": model.get_state_display(), "profiles": profiles, "saes": list(saes)}


def _profiles(user: Any, model: LanguageModel) -> list[dict[str, Any]]:
    """Return unarchived profiles that the user can see, with their version numbers, latest first."""
    seen = visible_profiles(user).filter(model=model, archived_at=None).order_by().values("pk")
    numbers: dict[str, list[int]] = {}
    fingerprints: dict[str, str] = {}
    rows = ProfileVersion.objects.filter(profile__in=seen).order_by("profile__name", "-number")
    for name, number, fingerprint in rows.values_list("profile__name", "number", "fingerprint"):
        numbers.setdefault(name, []).append(number)
        fingerprints[f"{name}@{number}"] = fingerprint
    headlines = find_headlines(model, set(fingerprints.values()))
    return [
        {
            "name": name,
            "versions": found[:VERSIONS],
            "headlines": {
                number: str(headlines[fingerprints[f"{name}@{number}"]])
                for number in found[:VERSIONS]
                if fingerprints[f"{name}@{number}"] in headlines
            },
        }
        for name, found in numbers.items()
    ]


PLAYGROUND = register_page(
    Page(
        name="playground",
        route="playground/",
        title="Playground",
        template="console/playground.html",
        permissions=(PERMISSION,),
        context=context,
    )
)


def save_draft(request: HttpRequest) -> HttpResponseBase:
    """Save the edits as a draft, and return the URL of the profile's page."""
    try:
        profile = _saved(request, read_json_object(request))
    except ValidationError as error:
        return refusal_response(invalid(" ".join(error.messages), param="name"))
    except MillmError as error:
        return refusal_response(error)
    url = reverse("admin:steering_steeringprofile_change", args=[profile.pk])
    return json_response({"name": profile.name, "url": url}, 201)


def _saved(request: HttpRequest, fields: dict[str, Any]) -> SteeringProfile:
    """Create the profile. Only the write is a transaction, because reading the edits uses another connection."""
    name, model_name = (_text(fields, key) for key in ("name", "model"))
    model = LanguageModel.objects.filter(name=model_name).first()
    if model is None:
        raise ModelNotFoundError(model_name)
    edits = parse_edits(read_inline(model.pk, model.name, fields.get("steering")).edits)
    owner: Any = request.user
    return create_profile(name=name, model=model, description="Created in the playground.", owner=owner, edits=edits)


def _text(fields: dict[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value or "\0" in value:
        raise invalid(f"`{key}` is required.", param=key)
    return value


register_endpoint(
    Endpoint(
        name="playground_draft",
        route="playground/draft/",
        view=save_draft,
        permissions=(PERMISSION, "steering.add_steeringprofile"),
    )
)


MAX_FOUND = 12
MAX_CHARS = 200
MAX_LABELS = 500
_INDEX = re.compile(r"[0-9]{1,9}")
_INDICES = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*")


def find_features(request: HttpRequest) -> JsonResponse:
    """Find features of a model's SAEs by label or index."""
    text = request.GET.get("q", "").replace("\0", "").strip()[:MAX_CHARS]
    model = request.GET.get("model", "").replace("\0", "")
    rows = Feature.objects.filter(sae__model__name=model).select_related("sae").search(text) if text else ()
    found = [
        {
            "sae": row.sae.name,
            "index": row.index,
            "label": row.label,
            "max_activation": row.max_activation,
        }
        for row in rows[:MAX_FOUND]
    ]
    return JsonResponse({"features": found})


def label_features(request: HttpRequest) -> JsonResponse:
    """Return labels by index. Features without a label and invalid indices are omitted."""
    asked = request.GET.get("indices", "")
    indices = [int(text) for text in asked.split(",")][:MAX_LABELS] if _INDICES.fullmatch(asked) else []
    sae = request.GET.get("sae", "").replace("\0", "")
    rows = Feature.objects.filter(sae__name=sae, index__in=indices).exclude(label="")
    return JsonResponse({"labels": dict(rows.values_list("index", "label"))})


def open_feature(request: HttpRequest) -> HttpResponse:
    """Redirect to the page of a feature, given its SAE and index."""
    index = request.GET.get("index", "")
    if not _INDEX.fullmatch(index):
        raise Http404
    sae = request.GET.get("sae", "").replace("\0", "")
    found = Feature.objects.filter(sae__name=sae, index=int(index)).select_related("sae").first()
    if found is None:
        raise Http404
    return redirect(feature_url(found))


register_endpoint(
    Endpoint(
        name="playground_feature",
        route="playground/feature/",
        view=open_feature,
        permissions=(PERMISSION, "steering.view_feature"),
        methods=("GET",),
    )
)
register_endpoint(
    Endpoint(
        name="playground_labels",
        route="playground/labels/",
        view=label_features,
        permissions=(PERMISSION, "steering.view_feature"),
        methods=("GET",),
    )
)
register_endpoint(
    Endpoint(
        name="playground_features",
        route="playground/features/",
        view=find_features,
        permissions=(PERMISSION, "steering.view_feature"),
        methods=("GET",),
    )
)
