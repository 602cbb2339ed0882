"""Scopes: which groups of endpoints a key may use."""

from __future__ import annotations

from collections.abc import Collection

from django.db import models

from openai_api.http.errors import forbidden
from openai_api.keys.record import KeyRecord


class Scope(models.TextChoices):
    """A group of endpoints. A key without scopes may use all of /v1, and nothing of /api."""

    GENERATE = "generate", "generate, embed, score"
    FEATURES = "features", "look up features"
    FILES = "files", "files, batches, vector stores"
    MANAGE = "manage", "manage the server (/api)"


BY_PREFIX = {
    "/v1/features": Scope.FEATURES,
    "/v1/files": Scope.FILES,
    "/v1/uploads": Scope.FILES,
    "/v1/batches": Scope.FILES,
    "/v1/vector_stores": Scope.FILES,
    "/v1/messages/batches": Scope.FILES,
    "/v1/models": None,  # every key may list the models it may use
}


def scope_of(endpoint: str) -> Scope | None:
    """Return the scope that an endpoint, by its log name, requires; None if any key may use it."""
    for prefix, scope in BY_PREFIX.items():
        if endpoint == prefix or endpoint.startswith(f"{prefix}/"):
            return scope
    return None if endpoint == "/v1/*" else Scope.GENERATE


def check_scope(key: KeyRecord | None, endpoint: str) -> None:
    """Raise MillmError 403 unless the key may use the endpoint."""
    needed = scope_of(endpoint)
    if key is None or not key.scopes or needed is None or needed in key.scopes:
        return
    raise forbidden(
        f"This key has no scope for {endpoint}: it needs “{needed}” and has {_listed(key.scopes)}. Use another key, or "
        "ask its owner for the scope.",
        code="scope_required",
    )


def _listed(scopes: Collection[str]) -> str:
    return ", ".join(f"“{scope}”" for scope in sorted(scopes))
