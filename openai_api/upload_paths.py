"""The routes whose bodies are files: the only ones that may be larger than MILLM_MAX_BODY_BYTES."""

from __future__ import annotations

import re

from django.conf import settings

FORM_BYTES = 2**20  # of a multipart body beside its file
_UPLOADS = re.compile(r"/v1/(files|uploads/[^/]+/parts)/?")


def takes_files(path: str) -> bool:
    return _UPLOADS.fullmatch(path) is not None


def body_limit(path: str) -> int:
    """The largest body that the route takes."""
    limit: int = settings.MILLM_MAX_BODY_BYTES
    return max(limit, settings.MILLM_MAX_FILE_BYTES + FORM_BYTES) if takes_files(path) else limit
