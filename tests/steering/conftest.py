"""A model with a small SAE in the database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from core.snapshots import forget_snapshots
from inference.models import LanguageModel
from steering import services
from steering.features.labels import FeatureLabel
from steering.models import SAE, Feature, FeatureEdit, SteeringProfile
from steering.sae_registry.registration import SAEHealth, SAELocation
from tests.steering.pages import login
from tests.steering.sae_files import D_IN, random_weights, write_sae

LABELS = (
    FeatureLabel(0, "sad rainy weather", 4.0, 0.02, (" rain", " storm")),
    FeatureLabel(1, "cats and kittens", 8.0, 0.01, (" cat",)),
    FeatureLabel(2, "the sea", 2.0, 0.05),
)


@pytest.fixture(autouse=True)
def cold_snapshots() -> Iterator[None]:
    forget_snapshots()
    yield
    forget_snapshots()


def write_model_config(folder: Path, **overrides: object) -> Path:
    """All that is looked at before a model is loaded: its configuration, and that the other files are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": D_IN,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "head_dim": 3,
    } | overrides
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def model(db: None, tmp_path: Path) -> LanguageModel:
    return LanguageModel.objects.create(name="tiny", source=str(write_model_config(tmp_path / "model")))


@pytest.fixture
def other_model(db: None, tmp_path: Path) -> LanguageModel:
    return LanguageModel.objects.create(name="other", source=str(write_model_config(tmp_path / "other-model")))


@pytest.fixture
def sae(model: LanguageModel, tmp_path: Path) -> SAE:
    return services.register_sae(
        name="tiny-sae",
        model=model,
        location=SAELocation(str(write_sae(tmp_path / "sae"))),
        labels=LABELS,
        health=SAEHealth(l0=7.5, fvu=0.2, mean_resid_norm=20.0),
    )


@pytest.fixture
def other_sae(other_model: LanguageModel, tmp_path: Path) -> SAE:
    folder = write_sae(tmp_path / "other-sae", weights=random_weights(9))
    return services.register_sae(name="other-sae", model=other_model, location=SAELocation(str(folder)))


@pytest.fixture
def feature(sae: SAE) -> Feature:
    return sae.features.get(index=0)


@pytest.fixture
def profile(model: LanguageModel, feature: Feature) -> SteeringProfile:
    """A draft with one edit: 0.5 maximal activations of feature 0."""
    profile = services.create_profile(name="gloomy", model=model, description="Sad weather.")
    FeatureEdit.objects.create(profile=profile, feature=feature, strength=0.5)
    return profile


@pytest.fixture
def researcher(db: None) -> User:
    return User.objects.create_user("rita")


@pytest.fixture
def admin(db: None) -> Client:
    return login(User.objects.create_superuser("admin"))
