"""Features found while one types."""

from __future__ import annotations

import re

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect

from console.pages import Endpoint, register_endpoint
from console.playground.answers import PERMISSION
from steering.features.admin import feature_url
from steering.models import Feature

MAX_FOUND = 12
MAX_CHARS = 200
MAX_LABELS = 500
_INDEX = re.compile(r"[0-9]{1,9}")
_INDICES = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*")


def find_features(request: HttpRequest) -> JsonResponse:
    """Of a model's SAEs, by words of their labels or by index; NUL is no part of any label."""
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
    """Labels by index, of features that have one; others are left out, and so is what is not a list of numbers."""
    asked = request.GET.get("indices", "")
    indices = [int(text) for text in asked.split(",")][:MAX_LABELS] if _INDICES.fullmatch(asked) else []
    sae = request.GET.get("sae", "").replace("\0", "")
    rows = Feature.objects.filter(sae__name=sae, index__in=indices).exclude(label="")
    return JsonResponse({"labels": dict(rows.values_list("index", "label"))})


def open_feature(request: HttpRequest) -> HttpResponse:
    """To the page of the feature that an answer names by its SAE and its index."""
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
