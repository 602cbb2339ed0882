"""Public pages of features: anyone with the link reads them without a login, and other sites may embed them.

A page shows the label, the statistics, the logit lens and the examples of the corpus; never examples of requests.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.http import require_safe

from audit.models import AuditEvent
from audit.record import record
from console.models import SharedFeature
from console.pages import Endpoint, register_endpoint
from core.ids import key_in
from openai_api.http.public_url import public_url
from steering.features.admin import feature_url, lens_context, lens_tables, lens_target, statistics
from steering.features.logit_lens import LensToken, LogitLens
from steering.models import Feature

SHARE = "console.add_sharedfeature"
StoredLens = dict[str, list[dict[str, Any]]]  # tokens with their logits
TOKEN_BYTES = 16  # cannot be guessed
POLICY = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors *"


@transaction.atomic
def share_feature(*, feature: Feature, lens: StoredLens | None, user: User) -> SharedFeature:
    """Publish the page of a feature with its ``lens``, so that visitors compute nothing. A link that exists is kept."""
    shared, is_new = SharedFeature.objects.update_or_create(
        feature=feature,
        defaults={"lens": lens},
        create_defaults={"lens": lens, "token": secrets.token_urlsafe(TOKEN_BYTES), "shared_by": user},
    )
    if is_new:
        record(AuditEvent.Action.ADD, shared, user=user, model=feature.sae.model.name)
    return shared


@transaction.atomic
def stop_sharing(*, shared: SharedFeature, user: User) -> None:
    record(AuditEvent.Action.DELETE, shared, user=user, model=shared.feature.sae.model.name)
    shared.delete()


def share_context(request: HttpRequest, feature: Feature) -> dict[str, Any]:
    """Return what the menu on a feature's page shows; nothing without permission."""
    if not request.user.has_perm(SHARE):
        return {"may_share": False}
    context: dict[str, Any] = {"may_share": True, "feature": feature}
    shared = SharedFeature.objects.filter(feature=feature).first()
    if shared is not None:
        url = public_url(request, reverse("shared-feature", args=[shared.token]))
        context["link"] = url
        context["embed"] = format_html(
            '<iframe src="{}" title="{}" width="640" height="480" style="border: 0"></iframe>', url, str(feature)
        )
    return context


def share(request: HttpRequest) -> HttpResponse:
    """Create the link of a feature, or remove it."""
    user = cast("User", request.user)
    feature = Feature.objects.select_related("sae__model").filter(pk=key_in(request.POST.get("feature", ""))).first()
    if feature is None:
        raise Http404
    back = HttpResponseRedirect(feature_url(feature))
    if request.POST.get("act") == "stop":
        shared = SharedFeature.objects.filter(feature=feature).first()
        if shared is not None:
            stop_sharing(shared=shared, user=user)
        messages.success(request, "The public page was removed.")
        return back
    found = lens_context(lens_target(feature))
    lens = found.get("lens")
    share_feature(feature=feature, lens=None if lens is None else _stored(lens), user=user)
    if lens is not None:
        messages.success(request, "The page is public. Copy its link under Share.")
    else:
        messages.warning(request, f"The page is public, without the logit lens. {found['problem']}")
    return back


def _stored(lens: LogitLens) -> StoredLens:
    return {name: [asdict(token) for token in getattr(lens, name)] for name in ("promoted", "suppressed")}


def _read(lens: StoredLens) -> tuple[list[LensToken], list[LensToken]]:
    promoted, suppressed = ([LensToken(**token) for token in lens[name]] for name in ("promoted", "suppressed"))
    return promoted, suppressed


@require_safe
@xframe_options_exempt
def shared_feature(request: HttpRequest, token: str) -> HttpResponse:
    """Render the public page of a feature. It has no scripts, no forms and no cookies, so any site may embed it."""
    rows = SharedFeature.objects.select_related("feature__sae__model")
    shared = rows.filter(token=token.replace("\0", "")).first()
    if shared is None:
        raise Http404
    feature = shared.feature
    context = {
        "original": feature,
        "sae": feature.sae,
        **statistics(feature),
        "lens": shared.lens,
        "lens_tables": lens_tables(*_read(shared.lens)) if shared.lens else (),
        "page": public_url(request, feature_url(feature)),
    }
    response = render(request, "console/shared_feature.html", context)
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Robots-Tag"] = "noindex"
    return response


register_endpoint(
    Endpoint(name="share", route="share-feature/", view=share, permissions=("steering.view_feature", SHARE))
)
