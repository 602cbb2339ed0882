"""Through the real engine: one model streams while others come, go, and fail to come."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from inference import services
from inference.client import FinishedEvent, GenerationRequest, LocalEngineClient, SamplingParams, TokensEvent
from inference.engine.cache.memory_ahead import MemoryAhead
from inference.engine.config import EngineConfig
from inference.engine.loop import EngineLoop
from inference.registry.loading import ModelLoading
from inference.registry.memory_plan import MemoryBudget
from inference.registry.model_card import ModelLoadFailedError
from inference.registry.registry import ModelRegistry
from tests.builders import build_model
from tests.database import in_thread

pytestmark = pytest.mark.django_db(transaction=True)


class GatedLoading:
    """The real loader, which waits for ``gate`` before it loads the model ``gated``."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.began = threading.Event()

    def parts(self, gated: str) -> ModelLoading:
        real = ModelLoading()

        def load(spec):
            if spec.name == gated:
                self.began.set()
                assert self.gate.wait(60)
            return real.load(spec)

        return replace(real, load=load)


@pytest.fixture
def client():
    client = LocalEngineClient(lambda publish: EngineLoop(EngineConfig(), publish))
    client.start()
    yield client
    client.stop(0)


def make_registry(client, **parts):
    return ModelRegistry(client.engine, is_busy=client.is_busy, load_timeout_s=60, **parts)


async def stream(client, name, max_tokens):
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return await client.submit([GenerationRequest("r", name, (5, 6, 7), params)])


def token_ids(events):
    return [token for event in events if isinstance(event, TokensEvent) for token in event.token_ids]


async def take(events, count):
    return [await anext(events) for _ in range(count)]


async def test_a_stream_goes_on_while_another_model_loads_serves_and_is_unloaded(client, tmp_path):
    for name in ("a", "b"):
        path = build_model(tmp_path / name, max_position_embeddings=4096)
        await in_thread(
            lambda name=name, path=path: services.register_model(name=name, source=str(path), dtype="float32")
        )
    loading = GatedLoading()
    registry = make_registry(client, loading=loading.parts(gated="b"))
    await registry.ready("a")
    alone = token_ids([event async for event in await stream(client, "a", 40)])

    running = await stream(client, "a", 1500)
    taken = await take(running, 2)
    coming = asyncio.create_task(registry.ready("b"))
    await asyncio.to_thread(loading.began.wait, 10)
    taken += await take(running, 10)
    assert not coming.done(), "the load is still held at its gate"
    loading.gate.set()
    await coming
    assert token_ids([event async for event in await stream(client, "b", 5)])
    await asyncio.wrap_future(registry.unload("b"))
    assert (client.stats().models, client.stats().running) == (("a",), 1)
    rest = [event async for event in running]
    assert isinstance(rest[-1], FinishedEvent)
    got = token_ids([*taken, *rest])

    assert len(got) == 1500
    assert got[:40] == alone
    await asyncio.to_thread(registry.stop)


async def test_two_models_share_a_budget_that_the_first_one_s_cache_could_fill(client, tmp_path, monkeypatch):
    """A full batch of the first one's longest sequences would take 34 MB of the 16."""
    monkeypatch.setattr(MemoryAhead, "allocate_some", lambda _: False)  # it would soon allocate all
    for name in ("first", "second"):
        path = build_model(tmp_path / name, max_position_embeddings=4096)
        await in_thread(
            lambda n=name, p=path: services.register_model(name=n, source=str(p), dtype="float32", pinned=True)
        )
    registry = make_registry(client, budget=MemoryBudget(limit=16 * 2**20))
    for name in ("first", "second"):
        await registry.ready(name)
        assert token_ids([event async for event in await stream(client, name, 60)])
    limits = {stats.name: stats.limits for stats in client.stats().by_model}

    for name in ("first", "second"):  # 62 tokens are kept for who begins alike
        assert limits[name].kv_bytes - 256 * 512 < client.stats().kv_unwritten(name) < limits[name].kv_bytes
    assert client.stats().kv_unwritten("third") == 0
    assert limits["first"].kv_bytes > limits["second"].kv_bytes >= 4096 * 512
    assert sum(each.kv_bytes for each in limits.values()) < 16 * 2**20
    assert limits["first"].kv_tokens == limits["first"].kv_bytes // 512
    await asyncio.to_thread(registry.stop)


async def test_a_load_that_cannot_fit_leaves_the_stream_and_the_engine_alone(client, tmp_path):
    small = build_model(tmp_path / "small")
    large = build_model(tmp_path / "large", hidden_size=512, intermediate_size=2048)
    for name, path in (("small", small), ("large", large)):
        await in_thread(
            lambda name=name, path=path: services.register_model(name=name, source=str(path), dtype="float32")
        )
    registry = make_registry(client, budget=MemoryBudget(limit=4 * 2**20))
    await registry.ready("small")
    running = await stream(client, "small", 200)
    await take(running, 2)
    with pytest.raises(ModelLoadFailedError, match=r"large needs about \d+\.\d\d (MiB|GiB)"):
        await registry.ready("large")
    rest = [event async for event in running]

    assert isinstance(rest[-1], FinishedEvent)
    assert client.stats().models == ("small",)
    await asyncio.to_thread(registry.stop)
