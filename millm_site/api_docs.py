"""The API's description, for programs and for people."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import condition, require_safe

from management_api.openapi import document_json, document_tag


@require_safe
@condition(etag_func=lambda request: document_tag())
def openapi(request: HttpRequest) -> HttpResponse:
    """Made once for each process; clients may keep it as long as its ETag stays the same."""
    return HttpResponse(document_json(), content_type="application/json", headers={"Cache-Control": "no-cache"})


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    """Swagger UI with the files of drf-spectacular-sidecar: no other host is asked for anything."""
    return render(request, "docs.html")
