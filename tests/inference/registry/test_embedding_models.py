"""An embedding model from its row to its vectors, through the registry and the client."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from inference import services
from inference.client import (
    EmbeddingEvent,
    EmbeddingRequest,
    FailedEvent,
    FinishedEvent,
    GenerationRequest,
    LocalEngineClient,
)
from inference.engine.config import EngineConfig
from inference.engine.loop import EngineLoop
from inference.registry.registry import ModelRegistry
from tests.database import in_thread
from tests.embedding_builders import build_embedder, reference_vector
from tests.inference.rows import row

pytestmark = pytest.mark.django_db(transaction=True)
TEXTS = ["The cat sat.", "a", "Text with [SEP] and [CLS] in it, written by a user."]


@pytest.fixture
def client():
    client = LocalEngineClient(lambda publish: EngineLoop(EngineConfig(), publish))
    client.start()
    yield client
    client.stop(0)


@pytest.mark.parametrize(("architecture", "pooling"), [("bert", "mean"), ("qwen3", "lasttoken")])
async def test_texts_become_vectors_in_order(client, tmp_path, architecture, pooling):
    path = build_embedder(tmp_path, architecture, pooling=pooling)
    await in_thread(lambda: services.register_model(name="e", source=str(path), dtype="float32"))
    assert (await row("e")).kind == "embedding"
    registry = ModelRegistry(client.engine, is_busy=client.is_busy, load_timeout_s=60)
    assert registry.find("e").kind == "embedding"
    ready = await registry.ready("e")
    assert (ready.kind, ready.dimensions, ready.max_model_len) == ("embedding", 32, 128)
    ids = [ready.text.encode(text) for text in TEXTS]
    requests = [EmbeddingRequest("r", "e", tuple(tokens), index) for index, tokens in enumerate(ids)]
    events = [event async for event in await client.submit(requests)]
    got = [np.frombuffer(event.values, "<f4") for event in events if isinstance(event, EmbeddingEvent)]

    assert sum(isinstance(event, FinishedEvent) for event in events) == 3
    for vector, tokens in zip(got, ids, strict=True):
        np.testing.assert_allclose(vector, reference_vector(path, tokens, pooling), rtol=1e-4, atol=1e-5)
    assert not client.is_busy("e")
    await asyncio.to_thread(registry.stop)


async def test_special_tokens_in_a_text_are_text(client, tmp_path):
    path = build_embedder(tmp_path)
    await in_thread(lambda: services.register_model(name="e", source=str(path)))
    registry = ModelRegistry(client.engine, load_timeout_s=60)
    tokens = (await registry.ready("e")).text.encode("a [SEP] a")

    assert (tokens[0], tokens[-1]) == (2, 3), "[CLS] and [SEP] around the text"
    assert 3 not in tokens[1:-1]
    await asyncio.to_thread(registry.stop)


async def test_generating_with_it_is_a_readable_failure(client, tmp_path):
    await in_thread(lambda: services.register_model(name="e", source=str(build_embedder(tmp_path))))
    registry = ModelRegistry(client.engine, load_timeout_s=60)
    await registry.ready("e")
    events = [event async for event in await client.submit([GenerationRequest("r", "e", (5, 6))])]

    assert [(type(event), event.code) for event in events] == [(FailedEvent, "wrong_model_kind")]
    await asyncio.to_thread(registry.stop)
