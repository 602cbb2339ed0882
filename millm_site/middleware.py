"""Middleware of the site."""

from __future__ import annotations

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

from millm_site.failures import database_unavailable, is_database_unavailable


class DatabaseUnavailableMiddleware(MiddlewareMixin):
    """A database that is away or has no free connection is 503 with Retry-After: the request may come again."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        return database_unavailable(request) if is_database_unavailable(exception) else None
