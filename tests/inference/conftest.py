from __future__ import annotations

import pytest

from core.runtime import runtime
from core.snapshots import forget_snapshots
from inference.client import ENGINE_CLIENT
from inference.registry.registry import MODEL_REGISTRY
from tests.builders import build_model
from tests.inference.fakes import Clock, FakeLoader, FakeLoop, Located


@pytest.fixture(autouse=True)
def _fresh_snapshots():
    """Each test has its own database content and its own engine, so nothing may outlive it."""
    forget_snapshots()
    yield
    forget_snapshots()
    runtime.remove(ENGINE_CLIENT)
    runtime.remove(MODEL_REGISTRY)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """A tiny Llama in the Hugging Face layout; do not change it."""
    return build_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def parts(tmp_path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512, "architectures": ["LlamaForCausalLM"]}')

    class Parts:
        engine = FakeLoop()
        loader = FakeLoader()
        located = Located(tmp_path)
        clock = Clock()
        busy: set[str] = set()
        unwritten: dict[str, int] = {}

    return Parts()
