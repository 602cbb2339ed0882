"""The smallest shape and the shortest workloads; speeds are not looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.options import Options
from benchmarks.shapes import SHAPES, shape_folder
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from tests import live

SHAPE = SHAPES["tiny"]
SHARE = 0.02


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark-models")
    shape_folder(SHAPE, folder)
    return folder


@pytest.fixture(scope="session")
def loaded(models: Path) -> LoadedModel:
    return load_model(ModelSpec(SHAPE.name, shape_folder(SHAPE, models), dtype=SHAPE.dtype, device="cpu"))


@pytest.fixture
def demo_database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark's servers find the demo in their database: they need not make one of their own."""
    monkeypatch.setitem(live.SETTINGS, "MILLM_DATABASE_URL", database_url)


@pytest.fixture
def migrated_database(migrated_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(live.SETTINGS, "MILLM_DATABASE_URL", migrated_database_url)


@pytest.fixture
def options(models: Path, tmp_path: Path) -> Options:
    return Options(SHAPE, rounds=2, share=SHARE, folder=models, results=tmp_path / "results")
