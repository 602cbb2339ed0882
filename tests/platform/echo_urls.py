"""Views that show what arrives, stream, and use the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.decorators import api_view, authentication_classes, permission_classes
from rest_framework.request import Request
from rest_framework.response import Response

from millm_site.http import health

seen_closed: list[str] = []


@csrf_exempt
def form(request: HttpRequest) -> JsonResponse:
    files = {name: file.read().decode() for name, file in request.FILES.items() if not isinstance(file, list)}
    return JsonResponse({"post": request.POST.dict(), "files": files, "secure": request.is_secure()})


@api_view(["POST"])
@authentication_classes([])
@permission_classes([])
def rest(request: Request) -> Response:
    return Response(request.data)


@csrf_exempt
async def size(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"bytes": len(request.body)})


async def status(request: HttpRequest, code: int) -> HttpResponse:
    return HttpResponse(status=code)


async def stream(request: HttpRequest) -> StreamingHttpResponse:
    """``?events=40&every=0.05``: numbered server-sent events."""
    count, pause = int(request.GET["events"]), float(request.GET["every"])

    async def events() -> AsyncIterator[str]:
        for number in range(count):
            yield f"data: {number}\n\n"
            await asyncio.sleep(pause)
        yield "data: [DONE]\n\n"

    return StreamingHttpResponse(events(), content_type="text/event-stream")


async def flood(request: HttpRequest) -> StreamingHttpResponse:
    """``?megabytes=300``, as fast as the client takes them; says how much went out before the client left."""

    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(int(request.GET["megabytes"]) * 16):
            yield bytes(2**16)

    return StreamingHttpResponse(blocks())


async def sleep(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(float(request.GET["seconds"]))
    return HttpResponse("slept")


def database(request: HttpRequest) -> JsonResponse:
    """``?hold=0.5``: keeps a connection that long."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid(), pg_sleep(%s)", [float(request.GET.get("hold", "0"))])
        row = cursor.fetchone()
    assert row is not None
    return JsonResponse({"backend": row[0]})


async def api_database(request: HttpRequest) -> JsonResponse:
    """The same as views of /v1 do it: in a thread that gives its connection back."""

    def work() -> JsonResponse:
        try:
            return database(request)
        finally:
            connection.close()

    return await asyncio.to_thread(work)


def broken(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("a secret cause")


urlpatterns = [
    path("status/<int:code>", status),
    path("form", form),
    path("rest", rest),
    path("size", size),
    path("stream", stream),
    path("flood", flood),
    path("sleep", sleep),
    path("database", database),
    path("broken", broken),
    path("v1/database", api_database),
    path("v1/broken", broken),
    path("health/live", health.live),
]
handler404 = "millm_site.http.failures.not_found"
handler500 = "millm_site.http.failures.failed"
