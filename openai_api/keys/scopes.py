"""Scopes: which groups of endpoints a key may use. The routes name the scope of each endpoint."""

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
    MEDIA = "media", "audio, images, videos"
    MANAGE = "manage", "manage the server (/api)"


def check_scope(key: KeyRecord | None, scope: Scope | None, endpoint: str) -> None:
    """Raise MillmError 403 unless the key has ``scope``, which ``endpoint`` (its name in the log) requires."""
    if key is None or not key.scopes or scope is None or scope in key.scopes:
        return
    raise forbidden(
        f"{endpoint} requires the scope `{scope}`; this API key has {_listed(key.scopes)}. Use another key, or "
        "ask its owner for the scope.",
        code="scope_required",
    )


def _listed(scopes: Collection[str]) -> str:
    return ", ".join(f"`{scope}`" for scope in sorted(scopes))
