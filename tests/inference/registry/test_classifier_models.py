"""A cross-encoder from its row to its scores, through the registry and the client."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from inference import services
from inference.client import EmbeddingEvent, EmbeddingRequest, LocalEngineClient
from inference.engine.config import EngineConfig
from inference.engine.loop import EngineLoop
from inference.registry.registry import ModelRegistry
from tests.classifier_builders import build_classifier, reference_logits
from tests.database import in_thread
from tests.inference.rows import row

pytestmark = pytest.mark.django_db(transaction=True)
PAIRS = [("the cat", "the cat sat."), ("the cat", "a"), ("", "sat")]


@pytest.fixture
def client():
    client = LocalEngineClient(lambda publish: EngineLoop(EngineConfig(), publish))
    client.start()
    yield client
    client.stop(0)


async def test_pairs_become_scores_in_order(client, tmp_path):
    path = build_classifier(tmp_path, labels=("relevant",))
    await in_thread(lambda: services.register_model(name="judge", source=str(path), dtype="float32"))
    assert (await row("judge")).kind == "classification"
    registry = ModelRegistry(client.engine, is_busy=client.is_busy, load_timeout_s=60)
    ready = await registry.ready("judge")
    assert (ready.kind, ready.labels) == ("classification", ("relevant",))
    pairs = [ready.text.encode_pair(*pair) for pair in PAIRS]
    requests = [
        EmbeddingRequest("r", "judge", tuple(pair.ids), index, tuple(pair.type_ids)) for index, pair in enumerate(pairs)
    ]
    events = [event async for event in await client.submit(requests)]
    got = {event.index: np.frombuffer(event.values, "<f4") for event in events if isinstance(event, EmbeddingEvent)}

    for index, pair in enumerate(PAIRS):
        expected_scores = 1 / (1 + np.exp(-reference_logits(path, *pair)))
        np.testing.assert_allclose(got[index], expected_scores, rtol=1e-4, atol=1e-5)
    await asyncio.to_thread(registry.stop)
