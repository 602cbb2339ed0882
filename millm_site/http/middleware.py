"""Middleware of all pages: the Content-Security-Policy header, and 503 while the database is down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

from millm_site.http.failures import database_unavailable, is_database_unavailable

HEADER = "Content-Security-Policy"


class ContentPolicyMiddleware:
    """Adds settings.SECURE_CSP (same name and format as in Django 6) to every response without such a header.

    django-csp does this in a synchronous hook, because of which each request to /v1 would switch threads twice.
    """

    async_capable = True
    sync_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._policy = as_header(settings.SECURE_CSP)
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self):
            return self._call_async(request)
        return self._with_policy(self.get_response(request))

    async def _call_async(self, request: HttpRequest) -> HttpResponseBase:
        return self._with_policy(await self.get_response(request))

    def _with_policy(self, response: HttpResponseBase) -> HttpResponseBase:
        if response.headers.get("Content-Type", "").startswith("text/html"):
            response.headers.setdefault(HEADER, self._policy)
        return response


def as_header(policy: Mapping[str, tuple[str, ...]]) -> str:
    return "; ".join(" ".join((directive, *sources)) for directive, sources in policy.items())


class DatabaseUnavailableMiddleware(MiddlewareMixin):
    """Returns 503 with Retry-After if the database is down or has no free connection."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        return database_unavailable(request) if is_database_unavailable(exception) else None
