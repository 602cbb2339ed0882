"""The playground's page: what it can choose from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse

from console.pages import Page, register_page
from console.playground.answers import PERMISSION
from inference.models import LanguageModel
from steering.models import SAE, FeatureEdit, ProfileVersion
from steering.spec.units import DEFAULT_STRENGTH
from steering.visibility import visible_profiles

VERSIONS = 10  # of each profile, the newest
OPERATIONS = ("add", "clamp", "scale", "ablate", "at_least", "at_most", "orthogonal", "projection_cap")


def context(request: HttpRequest) -> Mapping[str, Any]:
    user: Any = request.user
    models = [_model(user, model) for model in LanguageModel.objects.filter(kind="generation").order_by("name")]
    choices = {
        "models": models,
        "operations": [choice for choice in FeatureEdit.Operation.choices if choice[0] in OPERATIONS],
        "units": FeatureEdit.Unit.choices,
        "phases": FeatureEdit.Phase.choices,
        "strength": DEFAULT_STRENGTH,
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
        "features": reverse("admin:console_playground_features"),
        "labels": reverse("admin:console_playground_labels"),
        "feature": reverse("admin:console_playground_feature"),
        "draft": reverse("admin:console_playground_draft"),
        "log": reverse("admin:index") + "openai_api/requestlog/",
    }


def _model(user: Any, model: LanguageModel) -> dict[str, Any]:
    saes = SAE.objects.filter(model=model).order_by("name").values_list("name", flat=True)
    profiles = _profiles(user, model) if user.has_perm("steering.view_steeringprofile") else []
    return {"name": model.name, "state": model.get_state_display(), "profiles": profiles, "saes": list(saes)}


def _profiles(user: Any, model: LanguageModel) -> list[dict[str, Any]]:
    """Those in use that the user may see, with the numbers of their versions, the newest first."""
    seen = visible_profiles(user).filter(model=model, archived_at=None).order_by().values("pk")
    numbers: dict[str, list[int]] = {}
    rows = ProfileVersion.objects.filter(profile__in=seen).order_by("profile__name", "-number")
    for name, number in rows.values_list("profile__name", "number"):
        numbers.setdefault(name, []).append(number)
    return [{"name": name, "versions": found[:VERSIONS]} for name, found in numbers.items()]


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
