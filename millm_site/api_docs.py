"""The API's description, for programs and for people."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from management_api.openapi import document


@require_safe
def openapi(request: HttpRequest) -> HttpResponse:
    return JsonResponse(document())


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    """Swagger UI with the files of drf-spectacular-sidecar: no other host is asked for anything."""
    return render(request, "docs.html")
