"""The whole run, in its quick form: every file is written, and a second run writes the same."""

import json
from dataclasses import replace

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.demo_model.card import write_card
from tools.demo_model.recipe import quick_recipe
from tools.demo_model.train import train_demo

pytestmark = pytest.mark.slow

QUICK = quick_recipe(seed=3)
TINY = replace(
    QUICK,
    labelled_stories=25,
    effect_tokens=3,
    model=replace(QUICK.model, tokens=8_000),
    sae=replace(QUICK.sae, tokens=6_000, pool_tokens=4_000),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    lines: list[str] = []
    return train_demo(TINY, folder, lines.append, threads=1), folder, lines


def test_every_file_is_written(run):
    names = {path.relative_to(run[1]).as_posix() for path in run[1].rglob("*") if path.is_file()}
    assert names >= {
        "README.md", "effects.json", "features.json", "health.json", "model/config.json", "model/model.safetensors",
        "model/tokenizer.json", "profiles.json", "sae/cfg.json", "sae/sae_weights.safetensors", "words.json",
    }  # fmt: skip


def test_the_written_model_is_the_trained_one(run):
    demo, folder, _ = run
    again = AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32")
    assert all((a == b).all() for a, b in zip(again.parameters(), demo.model.parameters(), strict=True))
    assert len(AutoTokenizer.from_pretrained(folder / "model")) == len(demo.tokenizer)
    config = json.loads((folder / "model" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert "_name_or_path" not in config


def test_the_run_reports_its_stages(run):
    text = "\n".join(run[2])
    for stage in ("tokenizer:", "model: step", "sae: step", "joyful:", "sea:", "written to"):
        assert stage in text


def test_health_states_what_the_issue_asks_for(run):
    health = json.loads((run[1] / "health.json").read_text())
    assert set(health) == {
        "l0", "fvu", "mean_resid_norm", "tokens", "model_parameters", "train_loss", "seed", "layer", "site",
        "dead_share",
    }  # fmt: skip
    assert health["seed"] == 3
    assert health["site"] == "resid_post"


def test_a_second_run_writes_the_same(run, tmp_path):
    _, folder, _ = run
    train_demo(TINY, tmp_path, lambda _line: None, threads=1)
    for name in ("features.json", "profiles.json", "health.json"):
        assert (tmp_path / name).read_text() == (folder / name).read_text()
    first, second = (
        load_file(folder / "model" / "model.safetensors"),
        load_file(tmp_path / "model" / "model.safetensors"),
    )
    assert all((first[name] == second[name]).all() for name in first)


def test_the_card_states_the_measured_figures(run):
    demo, _, _ = run
    card = write_card(demo.recipe, demo.health, demo.profiles)
    assert f"{demo.health['train_loss']:.3f} nats" in card
    assert f"{demo.health['fvu']:.4f}" in card
    assert all(f"| {profile.concept.name} |" in card for profile in demo.profiles)
