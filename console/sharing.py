"""Public pages of features and vectors: anyone with the link reads them without a login, also inside other sites.

A page shows the label or description, the statistics, the logit lens, the measured effect and the examples of the
corpus; never examples of requests.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.http import require_safe

from audit.models import AuditEvent
from audit.record import record
from console.models import SharedPage, SharedSubject
from console.pages import Endpoint, register_endpoint
from core.ids import key_in
from inference.models import LanguageModel
from inference.permissions import Viewer
from openai_api.http.public_url import public_url
from steering.features.admin import effect_context, feature_url, lens_context, lens_tables, lens_target, statistics
from steering.features.logit_lens import LensToken, LogitLens
from steering.models import Feature, PlainVector
from steering.profiles.drafts import residual_norm
from steering.vectors.dashboard import vector_facts, vector_lens_target, vector_url
from steering.visibility import visible_vectors

SHARE = "console.add_sharedpage"
StoredLens = dict[str, list[dict[str, Any]]]  # tokens with their logits
TOKEN_BYTES = 16  # cannot be guessed
POLICY = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors *"


def model_of(subject: SharedSubject) -> LanguageModel:
    return subject.sae.model if isinstance(subject, Feature) else subject.vector_set.model


def page_url(subject: SharedSubject) -> str:
    """Return the URL of the page in the console."""
    return feature_url(subject) if isinstance(subject, Feature) else vector_url(subject)


def public_page(subject: SharedSubject) -> QuerySet[SharedPage]:
    """Return the public page of a feature or vector, as a query that finds one row or none."""
    return SharedPage.objects.filter(**_named(subject))


def visible_pages(user: Viewer, pages: QuerySet[SharedPage]) -> QuerySet[SharedPage]:
    """Leave out the pages of vectors that the user may not see in the console. The vectors' values are not read."""
    seen = visible_vectors(user).order_by().values("pk")
    return (pages.filter(vector=None) | pages.filter(vector__in=seen)).defer("vector__data")


@transaction.atomic
def share_page(*, subject: SharedSubject, lens: StoredLens | None, user: User) -> SharedPage:
    """Publish the page with its ``lens``, so that visitors compute nothing. A link that exists is kept."""
    shared, is_new = SharedPage.objects.update_or_create(
        **_named(subject),
        defaults={"lens": lens},
        create_defaults={"lens": lens, "token": secrets.token_urlsafe(TOKEN_BYTES), "shared_by": user},
    )
    if is_new:
        record(AuditEvent.Action.ADD, shared, user=user, model=model_of(subject).name)
    return shared


@transaction.atomic
def stop_sharing(*, shared: SharedPage, user: User) -> None:
    record(AuditEvent.Action.DELETE, shared, user=user, model=model_of(shared.subject).name)
    shared.delete()


def share_context(request: HttpRequest, subject: SharedSubject) -> dict[str, Any]:
    """Return what the menu on the page of a feature or vector shows; nothing without permission."""
    if not request.user.has_perm(SHARE):
        return {"may_share": False}
    kind = _kind(subject)
    context: dict[str, Any] = {"may_share": True, "key": subject.pk, "kind": kind}
    shared = public_page(subject).first()
    if shared is not None:
        url = public_url(request, reverse("shared-page", args=[f"{kind}s", shared.token]))
        context["link"] = url
        context["embed"] = format_html(
            '<iframe src="{}" title="{}" width="640" height="480" style="border: 0"></iframe>', url, str(subject)
        )
    return context


def share(request: HttpRequest) -> HttpResponse:
    """Create the link of a feature or vector, or remove it."""
    user = cast("User", request.user)
    subject = _find_subject(user, request.POST.get("kind", ""), request.POST.get("key", ""))
    back = HttpResponseRedirect(page_url(subject))
    if request.POST.get("act") == "stop":
        shared = public_page(subject).first()
        if shared is not None:
            stop_sharing(shared=shared, user=user)
        messages.success(request, "The public page was removed.")
        return back
    found = lens_context(lens_target(subject) if isinstance(subject, Feature) else vector_lens_target(subject))
    lens = found.get("lens")
    share_page(subject=subject, lens=None if lens is None else _stored(lens), user=user)
    if lens is not None:
        messages.success(request, "The page is public. Copy its link under Share.")
    else:
        messages.warning(request, f"The page is public, without the logit lens. {found['problem']}")
    return back


def _find_subject(user: Viewer, kind: str, key: str) -> SharedSubject:
    """Return a feature or vector that the user may see. Raise Http404, also for vectors of others."""
    found: SharedSubject | None = None
    if kind == "feature" and user.has_perm("steering.view_feature"):
        found = Feature.objects.select_related("sae__model").filter(pk=key_in(key)).first()
    elif kind == "vector" and user.has_perm("steering.view_vectorset"):
        found = visible_vectors(user).select_related("vector_set__model").filter(pk=key_in(key)).first()
    if found is None:
        raise Http404
    return found


def _kind(subject: SharedSubject) -> str:
    return "feature" if isinstance(subject, Feature) else "vector"


def _named(subject: SharedSubject) -> Mapping[str, Any]:
    return {_kind(subject): subject}


def _stored(lens: LogitLens) -> StoredLens:
    return {name: [asdict(token) for token in getattr(lens, name)] for name in ("promoted", "suppressed")}


def _read(lens: StoredLens) -> tuple[list[LensToken], list[LensToken]]:
    promoted, suppressed = ([LensToken(**token) for token in lens[name]] for name in ("promoted", "suppressed"))
    return promoted, suppressed


@require_safe
@xframe_options_exempt
def shared_page(request: HttpRequest, kinds: str, token: str) -> HttpResponse:
    """Render the public page of a feature or vector. It has no scripts, forms or cookies, so any site may embed it.

    ``kinds`` is "features" or "vectors".
    """
    rows = SharedPage.objects.select_related("feature__sae__model", "vector__vector_set__model", "vector__effect")
    shared = rows.defer("vector__data").filter(token=token.replace("\0", "")).first()
    if shared is None or kinds != f"{shared.kind}s":
        raise Http404
    subject = shared.subject
    context = {
        **(_feature_context(subject) if isinstance(subject, Feature) else _vector_context(subject)),
        "lens": shared.lens,
        "lens_tables": lens_tables(*_read(shared.lens)) if shared.lens else (),
        "page": public_url(request, page_url(subject)),
    }
    response = render(request, f"console/shared_{shared.kind}.html", context)
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Robots-Tag"] = "noindex"
    return response


def _feature_context(feature: Feature) -> dict[str, Any]:
    return {
        "title": feature.label or str(feature),
        "original": feature,
        "sae": feature.sae,
        **statistics(feature),
        **effect_context(feature),
        "output_tokens": feature.output_tokens,
    }


def _vector_context(vector: PlainVector) -> dict[str, Any]:
    """The origin is left out: it may name a file."""
    effect = getattr(vector, "effect", None)
    return {
        "title": vector.vector_set.name,
        "original": vector.vector_set,
        "vector": vector,
        "effect": effect,
        "output_tokens": effect.output_tokens if effect else (),
        **vector_facts(vector, residual_norm(vector)),
    }


register_endpoint(Endpoint(name="share", route="share/", view=share, permissions=(SHARE,)))
