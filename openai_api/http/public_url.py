"""Absolute links to this server."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest


def public_url(request: HttpRequest, path: str) -> str:
    """Return the URL of a path under MILLM_PUBLIC_URL; without that setting, under the address of the request.

    Behind a proxy, the request may have come to another host and port than users know.
    """
    return settings.MILLM_PUBLIC_URL + path if settings.MILLM_PUBLIC_URL else request.build_absolute_uri(path)
