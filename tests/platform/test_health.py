"""The probes tell the truth, in bounded time."""

from __future__ import annotations

import asyncio
import time

import pytest
from django.test import AsyncClient, Client

from core.runtime import runtime
from inference.client import ENGINE_CLIENT, EngineStats
from inference.models import LanguageModel
from inference.registry.records import model_table
from millm_site.http.health import examine
from millm_site.serving import Serving


async def fine() -> str:
    return ""


async def broken() -> str:
    return "It is broken."


async def hanging() -> str:
    await asyncio.Event().wait()
    return ""


async def test_everything_fine_is_ready() -> None:
    assert await examine({"a": fine, "b": fine}) == {"status": "ready", "a": "ok", "b": "ok"}


async def test_one_complaint_makes_it_unavailable_and_is_shown() -> None:
    assert await examine({"a": fine, "b": broken}) == {"status": "unavailable", "a": "ok", "b": "It is broken."}


async def test_probe_that_hangs_is_cut() -> None:
    started = time.monotonic()
    report = await examine({"a": hanging, "b": hanging}, timeout_s=0.2)
    assert report["a"] == "No response within 0.2 s."
    assert time.monotonic() - started < 1


@pytest.mark.django_db(transaction=True)
async def test_process_without_an_engine_is_alive_but_not_ready(async_client: AsyncClient) -> None:
    live, ready = await async_client.get("/health/live"), await async_client.get("/health/ready")
    assert (live.status_code, ready.status_code) == (200, 503)
    report = ready.json()
    assert report["database"] == "ok"
    assert "engine" in report["engine"].lower()
    assert "no-store" in ready.headers["Cache-Control"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/health", "/health/ready"])
async def test_a_lost_engine_is_not_ready_and_the_cause_is_told(async_client: AsyncClient, path: str) -> None:
    class Lost:
        def stats(self) -> EngineStats:
            return EngineStats("failed", error="The engine thread has not responded for 60 s.")

    runtime.install(ENGINE_CLIENT, Lost())  # type: ignore[misc]  # only asked for its state
    try:
        answer = await async_client.get(path)
    finally:
        runtime.remove(ENGINE_CLIENT)
    assert answer.status_code == 503
    assert "not responded for 60 s" in answer.json()["engine"]


@pytest.mark.django_db(transaction=True)
async def test_a_probe_can_wait_for_models(async_client: AsyncClient) -> None:
    await LanguageModel.objects.acreate(name="here", source="org/here", state="loaded", aliases=["h"])
    await LanguageModel.objects.acreate(name="coming", source="org/coming", state="loading")
    model_table.forget()
    for query, problem in (
        ("?model=here&model=h", "ok"),
        ("?model=here&model=coming", "The model `coming` is not loaded."),
        ("?model=nowhere", "The model `nowhere` is not loaded."),
        ("?model=", "The model `` is not loaded."),
    ):
        answer = await async_client.get(f"/health/ready{query}")
        assert answer.json()["models"] == problem
    assert "models" not in (await async_client.get("/health/ready")).json()
    long = await async_client.get("/health/ready", {"model": "x" * 9_000})
    assert len(long.content) < 1_000
    model_table.forget()


def test_who_serves_hears_of_a_lost_engine_whenever_it_asks() -> None:
    heard: list[str] = []
    serving = Serving()
    serving.on_failure(lambda: heard.append("early"))
    serving.fail("gone")
    serving.on_failure(lambda: heard.append("late"))
    assert (heard, serving.failure) == (["early", "late"], "gone")


def test_probes_only_read(client: Client) -> None:
    assert client.post("/health/live").status_code == 405


def test_nothing_is_stopped_that_was_not_started() -> None:
    serving = Serving()
    serving.stop_engine(0)
    assert not serving.is_draining
