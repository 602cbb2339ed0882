"""The number of requests under way is bounded, and every way out of a request gives its place back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openai_api.http.in_flight import in_flight
from tests.openai_api.conftest import Api, events_of
from tests.openai_api.fakes import failing, silent


@pytest.fixture(autouse=True)
def two_at_once(settings: Any) -> None:
    settings.MILLM_MAX_CONCURRENT_REQUESTS = 2
    assert in_flight.count == 0


async def test_one_too_many_is_503_and_may_come_again(api: Api):
    api.engine.script = silent
    waiting = [asyncio.create_task(api.chat()) for _ in range(2)]
    await api.engine.is_drained.wait()
    while in_flight.count < 2:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    refused = await api.chat()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "server_is_overloaded"
    assert refused.headers["Retry-After"] == "1"
    assert in_flight.count == 2
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert in_flight.count == 0


async def test_every_way_out_gives_the_place_back(api: Api):
    await api.chat()
    await api.chat(temperature=-1)
    await api.chat(model="unknown")
    await api.client.get("/v1/nowhere")
    await events_of(await api.chat(stream=True))
    api.engine.script = failing("server_error", after="x")
    await events_of(await api.chat(stream=True))
    api.engine.failure = RuntimeError("broken")
    await api.chat()
    assert in_flight.count == 0


async def test_a_response_that_nobody_reads_gives_its_place_back(api: Api):
    response = await api.chat(stream=True)
    assert in_flight.count == 1
    response.close()
    assert in_flight.count == 0
