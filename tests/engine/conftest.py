from __future__ import annotations

import pytest

from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from tests.builders import ARCHITECTURES, build_model


@pytest.fixture(scope="session")
def loaded_models(tmp_path_factory) -> dict[str, LoadedModel]:
    """The three reference architectures, random and tiny, in float32."""
    root = tmp_path_factory.mktemp("models")
    return {
        name: load_model(ModelSpec("tiny", build_model(root / name, name), dtype="float32", device="cpu"))
        for name in ARCHITECTURES
    }


@pytest.fixture
def llama(loaded_models) -> LoadedModel:
    return loaded_models["llama"]


@pytest.fixture(params=ARCHITECTURES)
def loaded(request, loaded_models) -> LoadedModel:
    return loaded_models[request.param]
