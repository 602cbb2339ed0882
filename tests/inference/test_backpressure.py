"""Document 003's stress cases through the client and the real engine, turn by turn: nothing here depends on time."""

from __future__ import annotations

import asyncio

import pytest

from inference.client import FinishedEvent, GenerationRequest, LocalEngineClient, QueueFullError, SamplingParams
from inference.engine.config import EngineConfig
from inference.engine.loop import EngineLoop
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model


@pytest.fixture(scope="module")
def loaded(model_dir):
    return load_model(ModelSpec("tiny", model_dir, dtype="float32", device="cpu"))


@pytest.fixture
def client(loaded):
    config = EngineConfig(max_batch_size=4, max_waiting_requests=12)
    client = LocalEngineClient(lambda publish: EngineLoop(config, publish))
    client.engine.accept_requests()
    client.engine.attach(loaded)
    client.engine.turn()
    return client


async def submit(client):
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    return await client.submit([GenerationRequest("r", "tiny", (5, 6, 7), params)])


async def run(client):
    """Turns until nothing is left to do; events go out between them."""
    for _ in range(1000):
        client.engine.turn()
        client.engine.check_integrity()
        await asyncio.sleep(0)
        if not client.stats().running + client.stats().waiting:
            return
    raise AssertionError("the engine does not come to an end")


async def ends(stream):
    return [event.reason async for event in stream if isinstance(event, FinishedEvent)]


async def test_queue_growth_under_load(client):
    """Ten more than there is room for: ten are refused, all others complete, and then there is room again."""
    streams, refusals = [], []
    for _ in range(4 + 12 + 10):
        try:
            streams.append(await submit(client))
        except QueueFullError as error:
            refusals.append(error)
    assert (len(streams), len(refusals)) == (16, 10)
    assert all(1 <= error.retry_after_s <= 60 for error in refusals)
    await run(client)

    assert [await ends(stream) for stream in streams] == [["length"]] * 16
    again = await submit(client)
    await run(client)
    assert await ends(again) == ["length"]


async def test_no_deadlock_under_concurrent_disconnect(client):
    streams = [await submit(client) for _ in range(8)]
    for stream in streams[::2]:
        stream.close()
    await run(client)

    assert [await ends(stream) for stream in streams[1::2]] == [["length"]] * 4
    assert [await ends(stream) for stream in streams[::2]] == [[]] * 4
    stats = client.stats()
    assert (stats.running, stats.waiting, stats.free_slots) == (0, 0, 4)
    assert not client.is_busy("tiny")
