"""The demo is installed once, brought up to date, and never over somebody's own work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from django.core.management import call_command
from django.utils import timezone
from safetensors.torch import save_file

from inference.models import LanguageModel
from jobs.models import Job
from steering import services
from steering.demo.install import TINY, Demo, install_demo
from steering.demo.packaged_model import DemoError
from steering.models import SAE, FeatureEdit, PlainVector, ProfileVersion, SteeringProfile, VectorEffect, VectorSet
from tests.steering.conftest import write_model_config
from tests.steering.sae_files import random_weights, write_sae


def write_artifacts(folder: Path, *, seed: int = 0, strength: float = 0.5) -> Path:
    write_model_config(folder / "model")
    write_sae(folder / "sae", weights=random_weights(seed))
    features = [
        {"index": index, "label": f"feature {index}", "max_activation": 4.0, "density": 0.01, "top_tokens": [" a"]}
        for index in range(40)
    ]
    profiles = [profile_entry("joyful", 3, strength), profile_entry("gloomy", 5, strength)]
    health = {"l0": 8.0, "fvu": 0.2, "mean_resid_norm": 20.0, "layer": 1, "site": "resid_post"}
    for name, value in (("features", features), ("profiles", profiles), ("health", health)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def demo_in(folder: Path) -> Demo:
    return replace(TINY, folder=folder)


def profile_entry(name: str, feature: int, strength: float) -> dict[str, Any]:
    edit = {"feature": feature, "operation": "add", "strength": strength, "unit": "max_act", "phase": "both"}
    return {"name": name, "description": f"A {name} mood.", "note": "As shipped.", "edits": [edit]}


@pytest.fixture
def artifacts(db: None, tmp_path: Path) -> Path:
    return write_artifacts(tmp_path / "artifacts")


def test_first_run_installs_everything(artifacts):
    demo = install_demo(demo_in(artifacts))
    assert (demo.model.name, demo.model.is_default, demo.model.autoload) == ("demo", True, True)
    assert demo.model.default_sampling == {"temperature": 0.8}
    assert (demo.sae.name, demo.sae.d_sae, demo.sae.mean_resid_norm) == ("demo-sae", 40, 20.0)
    assert demo.sae.features.get(index=3).label == "feature 3"
    assert demo.published == ("joyful@1", "gloomy@1")
    assert ProfileVersion.objects.get(profile__name="joyful").note == "As shipped."


def test_its_sae_is_measured_where_that_is_wanted(artifacts):
    call_command("install_demo", verbosity=0)
    assert not Job.objects.exists()
    SAE.objects.update(name="another")
    demo = install_demo(demo_in(artifacts), measures=True)
    assert Job.objects.get(kind="steering.health").params["sae"] == demo.sae.pk
    install_demo(demo_in(artifacts), measures=True)
    assert Job.objects.count() == 1


def test_second_run_does_nothing(artifacts, django_assert_max_num_queries):
    first = install_demo(demo_in(artifacts))
    with django_assert_max_num_queries(20):
        second = install_demo(demo_in(artifacts))
    assert (second.sae.pk, second.published) == (first.sae.pk, ())
    assert ProfileVersion.objects.count() == 2


def test_looking_for_changes_does_not_load_torch():
    """``make run`` calls this every time."""
    code = "import steering.demo.install, sys; sys.exit('torch' in sys.modules)"
    setup = "import django; django.setup(); "
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "millm_site.settings"}
    result = subprocess.run([sys.executable, "-c", setup + code], env=environment, check=False)
    assert result.returncode == 0


def test_other_default_model_stays(artifacts):
    LanguageModel.objects.create(name="mine", source="/somewhere", is_default=True)
    assert not install_demo(demo_in(artifacts)).model.is_default


def test_settings_of_the_model_stay(artifacts):
    install_demo(demo_in(artifacts))
    LanguageModel.objects.update(autoload=False, default_sampling={"temperature": 0.1})
    model = install_demo(demo_in(artifacts)).model
    assert (model.autoload, model.default_sampling) == (False, {"temperature": 0.1})


def test_moved_project_is_found_again(artifacts, tmp_path):
    install_demo(demo_in(artifacts))
    moved = artifacts.rename(tmp_path / "elsewhere")
    demo = install_demo(demo_in(moved))
    assert (demo.model.source, demo.sae.source) == (str(moved / "model"), str(moved / "sae"))
    assert demo.published == ()
    assert SAE.objects.count() == 1


def test_new_shipment_is_published(artifacts):
    install_demo(demo_in(artifacts))
    write_artifacts(artifacts, strength=0.75)
    assert install_demo(demo_in(artifacts)).published == ("joyful@2", "gloomy@2")
    assert FeatureEdit.objects.filter(profile__name="joyful").get().strength == 0.75


def test_edited_draft_is_left_alone(artifacts):
    install_demo(demo_in(artifacts))
    FeatureEdit.objects.filter(profile__name="joyful").update(strength=2.0)
    write_artifacts(artifacts, strength=0.75)
    assert install_demo(demo_in(artifacts)).published == ("gloomy@2",)
    assert FeatureEdit.objects.get(profile__name="joyful").strength == 2.0


def test_profile_that_somebody_published_is_left_alone(artifacts, researcher):
    install_demo(demo_in(artifacts))
    FeatureEdit.objects.filter(profile__name="joyful").update(strength=2.0)
    services.publish_profile(profile=SteeringProfile.objects.get(name="joyful"), user=researcher)
    write_artifacts(artifacts, strength=0.75)
    assert install_demo(demo_in(artifacts)).published == ("gloomy@2",)


def test_retrained_sae_replaces_the_old_one(artifacts):
    old = install_demo(demo_in(artifacts)).sae
    write_artifacts(artifacts, seed=4)
    demo = install_demo(demo_in(artifacts))
    assert demo.sae.pk != old.pk
    assert demo.published == ("joyful@2", "gloomy@2")
    assert SAE.objects.get(pk=old.pk).name == f"demo-sae-{old.checksum[:8]}"


def test_own_profiles_are_kept(artifacts):
    demo = install_demo(demo_in(artifacts))
    services.create_profile(name="mine", model=demo.model)
    install_demo(demo_in(artifacts))
    assert SteeringProfile.objects.filter(name="mine").exists()


def test_missing_artifacts_name_the_remedy(db, tmp_path):
    with pytest.raises(DemoError, match=r"manage\.py train_demo"):
        install_demo(demo_in(tmp_path))


def test_damaged_artifacts_install_nothing(artifacts):
    (artifacts / "sae" / "sae_weights.safetensors").write_bytes(b"")
    with pytest.raises(DemoError, match="not a valid safetensors file"):
        install_demo(demo_in(artifacts))
    assert not LanguageModel.objects.exists()


def test_vectors_are_installed_with_the_profiles_that_use_them(artifacts):
    shutil.rmtree(artifacts / "sae")  # a demo without an SAE
    write_vectors(artifacts, seed=1)
    demo = install_demo(demo_in(artifacts))
    assert (demo.sae, demo.published) == (None, ("calm@1",))
    vector = PlainVector.objects.get(vector_set__name="calm")
    assert (vector.layer, vector.site, vector.reference_norm) == (1, "resid_post", 20.0)
    edit = FeatureEdit.objects.get()
    assert (edit.plain_vector, edit.strength, edit.unit) == (vector, 0.3, "resid_norm")
    assert install_demo(demo_in(artifacts)).published == ()

    write_vectors(artifacts, seed=2)
    assert install_demo(demo_in(artifacts)).published == ("calm@2",)
    assert VectorSet.objects.count() == 2
    assert FeatureEdit.objects.get().plain_vector.vector_set.name == "calm"


def test_effects_of_vectors_are_installed_with_them_and_later(artifacts):
    write_vectors(artifacts, seed=1)
    install_demo(demo_in(artifacts))  # an earlier version of the demo had none
    assert not VectorEffect.objects.exists()
    sample = {"prompt": "Tell me a story.", "before": "A cat sat.", "after": "A calm sea."}
    effect = {"strength": 2.0, "kl": 0.6, "push": 0.4, "is_capped": False, "fluency": 1.2, "curve": [[2.0, 0.6]]}
    effect |= {"samples": [sample], "output_tokens": [[" calm", 0.2]]}
    found = {"recipe": "r", "vectors": {"calm": {"1": effect}}}
    (artifacts / "vector_effects.json").write_text(json.dumps(found))
    install_demo(demo_in(artifacts))
    row = VectorEffect.objects.get()
    assert (row.vector.vector_set.name, row.in_unit("resid_norm"), row.is_imported) == ("calm", 0.4, True)
    assert (row.samples, row.output_tokens, row.curve) == ([sample], [[" calm", 0.2]], [[2.0, 0.6]])
    row.delete()
    own = {"strength": 1.0, "kl": 0.1, "push": 0.1, "recipe": "own", "measured_at": timezone.now()}
    VectorEffect.objects.create(vector=row.vector, **own)
    install_demo(demo_in(artifacts))
    assert VectorEffect.objects.get().recipe == "own"


def write_vectors(folder: Path, *, seed: int) -> None:
    values = torch.randn(12, generator=torch.Generator().manual_seed(seed))
    save_file({"layer_1": values}, folder / "calm.safetensors")
    listed = {"name": "calm", "file": "calm.safetensors", "description": "", "origin": "a test"}
    (folder / "vectors.json").write_text(json.dumps([listed | {"reference_norms": {"1": 20.0}}]))
    edit = {"vector": "calm", "layer": 1, "operation": "add", "strength": 0.3, "unit": "resid_norm", "phase": "both"}
    (folder / "profiles.json").write_text(json.dumps([{"name": "calm", "edits": [edit]}]))


def test_command_installs_what_the_project_ships(db, capsys):
    """Whatever the shipped profiles are, each can be published as it is."""
    call_command("install_demo")
    assert "Installed: model demo, SAE demo-sae; published: " in capsys.readouterr().out
    names = set(SteeringProfile.objects.filter(model__name="demo").values_list("name", flat=True))
    assert {"joyful", "gloomy"} <= names
    call_command("install_demo")
    assert "nothing new" in capsys.readouterr().out
