"""SAEs on the Hub are listed and previewed without their weights, and only what is needed is downloaded.

The Hub's library reads its address when it is imported: each test asks a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from steering.sae_registry.hub import SAEListing, list_saes
from steering.saes.loader import load_sae
from tests import live
from tests.steering.fake_hub import FakeHub, running
from tests.steering.format_files import circuit_tracer, dictionary_learning, gemma_scope_2, goodfire, sparsify
from tests.steering.sae_files import random_weights, sae_config, write_sae

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys, time, django
django.setup()
from inference.files.sources import SourceError
from inference.files.downloads import watch
from steering.sae_registry.hub import list_saes
from steering.saes.loader import load_sae
from steering.sae_registry.files import load_source, locate_sae
from inference.steering_refs import SAESource
from steering.saes.errors import InvalidSAEError
from steering.saes.preview import preview_sae

def preview(subfolder):
    place = locate_sae("org/saes", subfolder=subfolder, with_weights=False)
    config = preview_sae(place)
    return [config.format, config.math.d_in, config.math.d_sae, str(config.site)]

def load(subfolder):
    return load_source(SAESource("x", "", "org/saes", "", subfolder)).key

def watched(subfolder):
    told = []
    place = watch(
        lambda download: locate_sae("org/saes", subfolder=subfolder, download=download),
        lambda done, total: told.append((done, total)),
    )
    return [told[-1], all(one <= two for one, two in zip(told, told[1:])), load_sae(place).key]

def stopped(subfolder):
    def stop(done, total):
        raise KeyboardInterrupt
    def work(download):
        return locate_sae("org/saes", subfolder=subfolder, download=lambda **o: (time.sleep(1), download(**o)))
    try:
        watch(work, stop)
    except KeyboardInterrupt:
        return "stopped"

def listing(subfolder):
    return [[f.subfolder, *f.formats] for f in list_saes("org/saes", subfolder=subfolder)]

for name, subfolder in json.loads(sys.argv[1]):
    try:
        print(json.dumps(globals()[name](subfolder)))
    except (SourceError, InvalidSAEError) as error:
        print(json.dumps(str(error)))
"""


@pytest.fixture
def hub(tmp_path):
    root = tmp_path / "hub"
    write_sae(root / "res" / "layer_1")
    write_sae(root / "res" / "layer_10", sae_config("topk"))
    gemma_scope_2(root / "gemma" / "layer_7_width_16k_l0_small")
    sparsify(root)
    dictionary_learning(root / "dl", "BatchTopKSAE")
    circuit_tracer(root / "transcoders")
    goodfire(root)
    (root / "README.md").write_text("SAEs")
    with running(FakeHub(root)) as hub:
        yield hub


def ask(hub: FakeHub, home: Path, *steps: tuple[str, str], token: str = "", offline: bool = False) -> list[Any]:
    """What the steps give, in a process that takes ``hub`` for the Hub."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "5",
        "MILLM_HOME": str(home / "millm"),
        "DJANGO_SETTINGS_MODULE": "millm_site.settings",
    } | ({"HF_TOKEN": token} if token else {})  # fmt: skip
    output = live.run_python("-c", SCRIPT, json.dumps(steps), environment=environment)
    return [json.loads(line) for line in output.splitlines()]


EXPECTED = [
    ["Llama-3.1-8B-Instruct-SAE-l19.pth", "goodfire"],
    ["dl", "dictionary-learning"],
    ["gemma/layer_7_width_16k_l0_small", "gemma-scope-2"],
    ["res/layer_1", "saelens", "saelens-5"],
    ["res/layer_10", "saelens", "saelens-5"],
    ["sae-tiny-32x/layers.1", "sparsify"],
    ["transcoders/layer_0.safetensors", "circuit-tracer"],
    ["transcoders/layer_1.safetensors", "circuit-tracer"],
    ["transcoders/layer_2.safetensors", "circuit-tracer"],
]


def test_listing_downloads_nothing(hub, tmp_path):
    whole, part = ask(hub, tmp_path, ("listing", ""), ("listing", "res"))
    assert whole == EXPECTED
    assert part == [["res/layer_1", "saelens", "saelens-5"], ["res/layer_10", "saelens", "saelens-5"]]
    assert hub.fetched() == []


def test_preview_reads_configurations_and_headers(hub, tmp_path):
    previews = ask(
        hub,
        tmp_path,
        ("preview", "res/layer_1"),
        ("preview", "gemma/layer_7_width_16k_l0_small"),
        ("preview", "dl"),
        ("preview", "transcoders/layer_2.safetensors"),
    )
    assert previews == [
        ["saelens", 12, 40, "layers.1.resid_post"],
        ["gemma-scope-2", 12, 40, "layers.7.resid_post"],
        ["dictionary-learning", 12, 40, "layers.1.resid_post"],
        ["circuit-tracer", 12, 40, "layers.2.mlp_out"],
    ]
    weights = [(path, ranges) for path, ranges in hub.fetched() if not path.endswith((".json", ".yaml"))]
    assert {path for path, _ in weights} == {
        "gemma/layer_7_width_16k_l0_small/params.safetensors",
        "transcoders/layer_2.safetensors",
    }
    assert all(ranges.startswith("bytes=0-") for _, ranges in weights)


def test_only_the_sae_itself_is_downloaded_and_only_once(hub, tmp_path):
    steps = (("load", "res/layer_10"), ("load", "sae-tiny-32x/layers.1"), ("load", "transcoders/layer_1.safetensors"))
    keys = ask(hub, tmp_path, *steps)
    folders = [hub.root / "res/layer_10", hub.root / "sae-tiny-32x/layers.1", hub.root / "transcoders"]
    folders[2] = folders[2] / "layer_1.safetensors"
    assert keys == [load_sae(folder).key for folder in folders]
    assert sorted(path for path, _ in hub.fetched()) == [
        "res/layer_10/cfg.json",
        "res/layer_10/sae_weights.safetensors",
        "sae-tiny-32x/layers.1/cfg.json",
        "sae-tiny-32x/layers.1/sae.safetensors",
        "transcoders/config.yaml",
        "transcoders/layer_1.safetensors",
    ]
    assert ask(hub, tmp_path, *steps, offline=True) == keys


def test_single_file_at_the_top(hub, tmp_path):
    name = "Llama-3.1-8B-Instruct-SAE-l19.pth"
    assert ask(hub, tmp_path, ("load", name)) == [load_sae(hub.root / name).key]
    assert [path for path, _ in hub.fetched()] == [name]


def test_part_of_a_folder_is_not_taken_for_all_of_it(hub, tmp_path):
    key, error = ask(hub, tmp_path, ("load", "transcoders/layer_1.safetensors"), ("load", "transcoders"))
    assert key == load_sae(hub.root / "transcoders/layer_1.safetensors").key
    assert "contains 3 transcoders" in error


def test_interrupted_download_goes_on_where_it_ended(hub, tmp_path):
    """The Hub's library writes 10 MB at a time."""
    d_sae = 200_000
    folder = write_sae(hub.root / "large", sae_config("standard", d_sae=d_sae), random_weights(d_sae=d_sae))
    hub.cut_after = 15_000_000
    assert ask(hub, tmp_path, ("load", "large")) == [load_sae(folder).key]
    ranges = [ranges for path, ranges in hub.fetched() if path == "large/sae_weights.safetensors"]
    assert ranges == ["", "bytes=10485760-"]


def test_download_is_watched(hub, tmp_path):
    """Configuration and weights are two downloads, told as one."""
    folder = hub.root / "res" / "layer_1"
    size = sum(file.stat().st_size for file in folder.iterdir())
    ((last, is_growing, key),) = ask(hub, tmp_path, ("watched", "res/layer_1"))
    assert last == [size, size]
    assert is_growing
    assert key == load_sae(folder).key


def test_watched_download_can_be_stopped_and_goes_on_later(hub, tmp_path):
    assert ask(hub, tmp_path, ("stopped", "res/layer_1"), ("load", "res/layer_1")) == [
        "stopped",
        load_sae(hub.root / "res" / "layer_1").key,
    ]


def test_token_of_a_gated_repository(hub, tmp_path):
    hub.token = "hf_secret"
    (error,) = ask(hub, tmp_path, ("listing", ""))
    assert error == "org/saes is gated: accept its terms on the Hub, and set HF_TOKEN to a token with access."
    assert ask(hub, tmp_path, ("listing", ""), token="hf_secret") == [EXPECTED]


def test_problems_are_told(hub, tmp_path):
    shutil.copytree(hub.root / "res" / "layer_1", hub.root / "two")
    shutil.copy(hub.root / "gemma/layer_7_width_16k_l0_small/config.json", hub.root / "two" / "config.json")
    shutil.copy(hub.root / "gemma/layer_7_width_16k_l0_small/params.safetensors", hub.root / "two")
    missing, absent, outside, two = ask(
        hub, tmp_path, ("load", "none"), ("preview", "res"), ("load", "../x"), ("preview", "two")
    )
    assert missing == "org/saes contains neither a folder nor a file 'none'."
    assert "No SAE was recognised" in absent
    assert "must be a relative path" in outside
    assert "matches several formats (SAELens and Gemma Scope 2)" in two
    (unreachable,) = ask(hub, tmp_path, ("listing", ""), offline=True)
    assert "the Hub is not reachable" in unreachable


class TestLocal:
    def test_listing(self, tmp_path):
        write_sae(tmp_path / "a" / "b")
        circuit_tracer(tmp_path)
        size = (tmp_path / "layer_0.safetensors").stat().st_size
        found = list_saes(str(tmp_path))
        assert [sae.subfolder for sae in found] == ["a/b", *(f"layer_{n}.safetensors" for n in range(3))]
        assert found[1] == SAEListing("layer_0.safetensors", ("circuit-tracer",), size)

    def test_nothing(self, tmp_path):
        (tmp_path / "model.safetensors").write_bytes(b"")
        assert list_saes(str(tmp_path)) == []
