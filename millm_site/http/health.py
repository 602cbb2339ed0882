"""Liveness and readiness probes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache

from core.errors import quote
from inference.client import EngineDownError, get_client
from inference.registry.registry import get_registry
from millm_site.http.failures import read_only
from millm_site.serving import is_draining

READY_TIMEOUT_S = 3.0
MAX_MODELS = 10  # that one probe can name
LOADED = "loaded"

# Returns a description of the problem, or "" if there is none.
Probe = Callable[[], Awaitable[str]]


@read_only
@never_cache
async def live(request: HttpRequest) -> HttpResponse:
    """Return 200 as long as the process responds."""
    return JsonResponse({"status": "alive"})


@read_only
@never_cache
async def ready(request: HttpRequest) -> HttpResponse:
    """Return 200 if a request could be served now, otherwise 503 with the problems. Takes at most a few seconds.

    ``?model=NAME``, repeatable: also require that the model is loaded.
    """
    probes: dict[str, Probe] = {"server": probe_server, "engine": probe_engine, "database": probe_database}
    if names := request.GET.getlist("model")[:MAX_MODELS]:
        probes["models"] = partial(probe_models, names)
    report = await examine(probes)
    return JsonResponse(report | {"load": engine_load()}, status=200 if report["status"] == "ready" else 503)


async def examine(probes: dict[str, Probe], timeout_s: float = READY_TIMEOUT_S) -> dict[str, Any]:
    """Run all probes concurrently and return the report; each entry is "ok" or describes the problem."""
    complaints = await asyncio.gather(*(_bounded(probe, timeout_s) for probe in probes.values()))
    entries = {name: complaint or "ok" for name, complaint in zip(probes, complaints, strict=True)}
    return {"status": "unavailable" if any(complaints) else "ready"} | entries


def engine_load() -> dict[str, int]:
    """Return the numbers of running sequences, waiting sequences and engine steps; all 0 without an engine."""
    try:
        stats = get_client().stats()
    except EngineDownError:
        return {"running": 0, "waiting": 0, "steps": 0}
    return {"running": stats.running, "waiting": stats.waiting, "steps": stats.steps}


async def _bounded(probe: Probe, timeout_s: float) -> str:
    try:
        async with asyncio.timeout(timeout_s):
            return await probe()
    except TimeoutError:
        return f"No response within {timeout_s:g} s."


async def probe_server() -> str:
    return "The server is stopping." if is_draining() else ""


async def probe_engine() -> str:
    try:
        stats = get_client().stats()
    except EngineDownError as error:
        return str(error)
    return "" if stats.is_up else f"The engine is {stats.state}. {stats.error}".strip()


async def probe_models(names: Sequence[str]) -> str:
    """Describe the first model that is not loaded. Whether a model exists is not disclosed: this needs no key."""
    loaded = {name for one in get_registry().records() if one.state == LOADED for name in (one.name, *one.aliases)}
    missing = next((name for name in names if name not in loaded), None)
    return "" if missing is None else f"The model `{quote(missing)}` is not loaded."


async def probe_database() -> str:
    return await asyncio.to_thread(_query_database)


def _query_database() -> str:
    """Query the database in its own thread, with a connection that returns to the pool."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Exception as error:  # noqa: BLE001 - whatever keeps the database from answering is the report
        return f"{type(error).__name__}: the database does not respond."
    finally:
        connection.close()
    return ""
