"""/metrics: what this process counts, in Prometheus' text formats."""

from __future__ import annotations

import asyncio

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from inference.client import get_client
from inference.metrics import REGISTRY, EngineCollector
from millm_site.http.failures import read_only
from openai_api.http.client_address import is_loopback
from openai_api.request_log import metrics as request_metrics

__all__ = ["metrics", "request_metrics"]  # the latter counts when it is imported

REGISTRY.register(EngineCollector(lambda: get_client().stats()))
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)


@read_only
@never_cache
async def metrics(request: HttpRequest) -> HttpResponse:
    """With MILLM_METRICS_TOKEN: for those who present it. Without: for this machine, where /v1 asks it for no key."""
    if not may_read(request):
        return _refusal()
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(await asyncio.to_thread(encode, REGISTRY), content_type=content_type)


def may_read(request: HttpRequest) -> bool:
    token = settings.MILLM_METRICS_TOKEN
    if not token:
        return settings.MILLM_AUTH == "loopback" and is_loopback(request)
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return constant_time_compare(given.strip(), token) and scheme.lower() == "bearer"


def _refusal() -> HttpResponse:
    if settings.MILLM_METRICS_TOKEN:
        return HttpResponse(
            "Send MILLM_METRICS_TOKEN as “Authorization: Bearer <token>”.\n",
            status=401,
            content_type="text/plain; charset=utf-8",
            headers={"WWW-Authenticate": "Bearer"},
        )
    text = "Metrics are not open here. Set MILLM_METRICS_TOKEN and send it as “Authorization: Bearer <token>”.\n"
    return HttpResponse(text, status=403, content_type="text/plain; charset=utf-8")
