"""Prompts read by a job, in a running engine."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from core.runtime import runtime
from inference.captures import CaptureSpec, TopFeatures
from inference.client import EngineDownError, LocalEngineClient
from inference.engine.config import EngineConfig
from inference.engine.loop import EngineLoop
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model
from inference.interventions import Site
from inference.prompt_captures import capture_prompts
from inference.runs import SequenceFailedError
from inference.steering_refs import STEERING_COMPILER, SAERef, SAESource
from tests.engine.readers import plain_residuals, top_k_reader
from tests.inference.fakes import FakeCompiler
from tests.inference.pickling import PicklingClient

SAE = top_k_reader()
PROMPTS = [tuple(range(3 + i, 8 + 2 * i)) for i in range(20)]


@pytest.fixture(scope="module")
def loaded(model_dir):
    return load_model(ModelSpec("tiny", model_dir, dtype="float32", device="cpu"))


@pytest.fixture(params=["much room", "little room", "pickled"])
def client(request, loaded):
    config = EngineConfig(max_batch_size=2, max_waiting_requests=3 if request.param == "little room" else 64)
    client = LocalEngineClient(lambda publish: EngineLoop(config, publish))
    client.start()
    client.engine.attach(loaded).result(30)
    runtime.install(STEERING_COMPILER, FakeCompiler(on_disk={SAE.key: SAE}))
    yield PicklingClient(client) if request.param == "pickled" else client
    runtime.remove(STEERING_COMPILER)
    client.stop(0)


def test_many_prompts_in_their_order_and_no_more_at_once_than_there_is_room_for(client, loaded):
    site, sae = Site(1), SAERef(SAESource("sae", SAE.key, "", "", ""), SAE.d_sae)
    captures = (
        CaptureSpec(site=site),
        CaptureSpec(site=site, pooling="last"),
        CaptureSpec(site=site, probe=TopFeatures(sae, 3)),
    )
    got = asyncio.run(capture_prompts(client, model="tiny", prompts=PROMPTS, captures=captures))

    assert len(got) == len(PROMPTS)
    for prompt, found in zip(PROMPTS, got, strict=True):
        expected = plain_residuals(loaded, list(prompt), site)
        assert found.places(0) == tuple(range(len(prompt)))
        np.testing.assert_allclose(found.values(0), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found.values(1)[0], expected[-1], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found.values(2), SAE.expected(expected).topk(3).values, rtol=1e-4, atol=1e-4)


def test_nothing_to_read_is_nothing(client):
    assert asyncio.run(capture_prompts(client, model="tiny", prompts=[], captures=(CaptureSpec(site=Site(1)),))) == []
    read = CaptureSpec(site=Site(1), phase="generation")
    got = asyncio.run(capture_prompts(client, model="tiny", prompts=[(5, 6)], captures=(read,)))
    assert got[0].values(0).shape == (0, 0)


def test_a_prompt_that_fails_says_so(client):
    with pytest.raises(SequenceFailedError, match="layers 0 to 3") as caught:
        asyncio.run(capture_prompts(client, model="tiny", prompts=[(5, 6)], captures=(CaptureSpec(site=Site(7)),)))
    assert caught.value.code == "sae_mismatch"
    with pytest.raises(SequenceFailedError, match="has no tokens"):
        asyncio.run(capture_prompts(client, model="tiny", prompts=[(5, 6), ()], captures=(CaptureSpec(site=Site(1)),)))


def test_an_engine_that_stopped_refuses(client):
    client.stop(0)
    with pytest.raises(EngineDownError):
        asyncio.run(capture_prompts(client, model="tiny", prompts=[(5, 6)], captures=(CaptureSpec(site=Site(1)),)))
