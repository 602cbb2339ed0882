from __future__ import annotations

import gc
import weakref

import pytest

from inference.engine.config import EngineConfig
from inference.engine.loop import EngineLoop
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model, release_model
from tests.builders import build_model


@pytest.fixture
def _no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
def test_a_detached_model_gives_its_memory_back_without_the_collector(tmp_path):
    loop = EngineLoop(EngineConfig(), lambda deliveries: None)
    loop.start()
    loaded = load_model(ModelSpec("m", build_model(tmp_path), device="cpu"))
    weights = [weakref.ref(parameter) for parameter in loaded.module.parameters()]
    loop.attach(loaded).result(10)
    rest = loop.detach("m").result(10)
    kept = weakref.ref(rest)
    assert all(weight() is not None for weight in weights)
    del rest
    release_model(loaded)

    assert not any(weight() is not None for weight in weights)
    assert kept() is None, "the engine's part (caches, steering tables) is still there"
    loop.stop(0)
