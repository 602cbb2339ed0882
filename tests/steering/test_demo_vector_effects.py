"""The measured effects of the demo's vectors: what is installed is what the tool writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.interventions import Site
from inference.models import LanguageModel
from steering.demo.install import SMOLLM2, install_vector_effects
from steering.vectors.services import NewVector, save_vectors
from tests.steering.conftest import write_model_config
from tests.steering.sae_files import D_IN
from tools.vector_effects import demo_file

pytestmark = pytest.mark.django_db
VALUES = (1.0,) * D_IN
SHIPPED = json.loads((SMOLLM2.folder / "vector_effects.json").read_text("utf-8"))


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    """The sets of the demo, with vectors that stand in for its own and their shipped effects."""
    model = LanguageModel.objects.create(name="m", source=str(write_model_config(tmp_path, num_hidden_layers=30)))
    for name, effects in SHIPPED["vectors"].items():
        vectors = [NewVector(Site(int(layer)), VALUES) for layer in effects]
        save_vectors(name=name, model=model, vectors=vectors, origin="test")
    install_vector_effects(SMOLLM2, model)
    return [*SHIPPED["vectors"]]


def test_the_shipped_file_is_what_the_tool_writes(names: list[str]) -> None:
    assert demo_file(names) == SHIPPED


def test_a_set_without_effects_is_refused(names: list[str]) -> None:
    save_vectors(name="new", model=LanguageModel.objects.get(), vectors=[NewVector(Site(1), VALUES)], origin="test")
    with pytest.raises(ValueError, match="new"):
        demo_file([*names, "new"])
