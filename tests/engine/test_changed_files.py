"""Files that are written to while a model of theirs is loaded, or while it is being loaded."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from inference.engine.embedding.classifier import load_classifier
from inference.engine.embedding.embedder import load_embedder
from inference.engine.errors import LoadError
from inference.engine.models.facts import ModelSpec
from inference.engine.models.load_faults import readable_files
from inference.engine.models.loader import LoadedModel, from_pretrained, load_model
from inference.engine.models.weight_files import open_weights
from tests import live
from tests.builders import build_model, build_tokenizer
from tests.classifier_builders import build_classifier
from tests.embedding_builders import build_embedder

pytestmark = pytest.mark.slow

MAPPED = Path("/proc/self/maps")


def build_with_biases(path: Path) -> Path:
    """Qwen 2's queries, keys and values have biases, which our linears keep as they are."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(path)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)
    return path


def build_sharded(path: Path) -> Path:
    AutoModelForCausalLM.from_pretrained(build_model(path)).save_pretrained(path, max_shard_size="20KB")
    (path / "model.safetensors").unlink(missing_ok=True)
    assert len(list(path.glob("model-*.safetensors"))) > 1
    return path


def build_pickled(path: Path) -> Path:
    module = AutoModelForCausalLM.from_pretrained(build_model(path))
    torch.save(module.state_dict(), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    return path


KINDS = {
    "generation": build_model,
    "biases": build_with_biases,
    "sharded": build_sharded,
    "pickled": build_pickled,
    "embedding": build_embedder,
    "embedding decoder": lambda path: build_embedder(path, "qwen3"),
    "classification": build_classifier,
}


def load(kind: str, path: Path, dtype: str = "auto") -> LoadedModel:
    spec = ModelSpec("m", path, dtype=dtype, device="cpu", allow_pickle=kind == "pickled")
    if kind.startswith("embedding"):
        return load_embedder(replace(spec, kind="embedding"))
    if kind == "classification":
        return load_classifier(replace(spec, kind="classification"))
    return load_model(spec)


@pytest.mark.skipif(not MAPPED.exists(), reason="only Linux says what is mapped")
@pytest.mark.parametrize("kind", KINDS)
def test_no_file_of_a_loaded_model_is_mapped(tmp_path, kind):
    loaded = load(kind, KINDS[kind](tmp_path))
    assert str(tmp_path) not in MAPPED.read_text()
    assert loaded.memory_bytes


OUTLIVES = """
import sys
from pathlib import Path
import torch
from tests.engine.test_changed_files import load

for folder in sys.argv[1:]:
    path = Path(folder)
    module = load(path.name, path).module
    tensors = [*module.parameters(), *module.buffers()]
    run = lambda: [float((t.to_dense() if t.is_mkldnn else t).double().sum()) for t in tensors]
    with torch.inference_mode():
        before = run()
        assert before
        for file in [*path.glob("*.safetensors"), *path.glob("*.bin")]:
            data = file.read_bytes()
            file.write_bytes(bytes(len(data)))
            assert run() == before, "the weights follow the file"
            file.write_bytes(b"")
            assert run() == before, "the weights follow the file"
    print(path.name, flush=True)
"""


def test_models_outlive_their_files(tmp_path):
    """In a process of its own: a mapped page that is gone ends the process with SIGBUS."""
    kinds = ["biases", "sharded", "embedding", "classification"]
    assert run_python(OUTLIVES, *(str(KINDS[kind](tmp_path / kind)) for kind in kinds)).split() == kinds


INTERRUPTED = """
import random, sys, threading, time
from pathlib import Path
from inference.engine.errors import LoadError
from tests.engine.test_changed_files import load

def interrupt(kind, path):
    files = [*path.glob("*.safetensors"), *path.glob("*.bin")]
    whole = {file: file.read_bytes() for file in files}
    done = threading.Event()

    def rewrite():
        while not done.is_set():
            for file, data in whole.items():
                time.sleep(random.random() / 20)
                file.write_bytes(data[: random.randrange(len(data))])
                time.sleep(random.random() / 20)
                file.write_bytes(data)

    writer = threading.Thread(target=rewrite, daemon=True)
    writer.start()
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(10):
        try:
            load(kind, path)
            outcomes["loaded"] += 1
        except LoadError:
            outcomes["refused"] += 1
    done.set()
    writer.join()
    load(kind, path)
    return sum(outcomes.values()), outcomes["refused"] > 0

for folder in sys.argv[1:]:
    print(Path(folder).name, *interrupt(Path(folder).name, Path(folder)), flush=True)
"""


def test_files_that_are_written_while_they_are_read_cost_the_load_only(tmp_path):
    kinds = ["generation", "pickled", "embedding"]
    output = run_python(INTERRUPTED, *(str(KINDS[kind](tmp_path / kind)) for kind in kinds))
    assert output.splitlines() == [f"{kind} 10 True" for kind in kinds]


def run_python(code: str, *arguments: str) -> str:
    return live.run_python("-c", code, *arguments, environment=os.environ)


class Rewriting:
    """transformers' class, but the weights' file is written to between its header and its tensors."""

    def __init__(self, act) -> None:
        self.act = act

    def from_config(self, config, **options):
        skeleton = AutoModelForCausalLM.from_config(config, **options)
        act, known = self.act, type(skeleton)

        class Late(known):
            @classmethod
            def from_pretrained(cls, *arguments, **options):
                act()
                return known.from_pretrained(*arguments, **options)

        skeleton.__class__ = Late
        return skeleton


@pytest.mark.parametrize("size", [0, 500, 5000])
def test_a_file_that_is_cut_between_its_header_and_its_tensors(tmp_path, size):
    file = build_model(tmp_path) / "model.safetensors"
    cut = Rewriting(lambda: file.write_bytes(file.read_bytes()[:size]))
    with pytest.raises(
        LoadError, match=r"m could not be loaded: model\.safetensors changed while it was being read\. Load it"
    ):
        load_with(cut, tmp_path)


def test_a_file_of_the_same_size_that_takes_its_place_is_noticed(tmp_path):
    """Half of the weights would be the old model's, half the new one's, and nothing would look wrong."""
    file = build_model(tmp_path / "old") / "model.safetensors"
    other = build_model(tmp_path / "new", seed=1) / "model.safetensors"
    assert file.stat().st_size == other.stat().st_size
    with pytest.raises(LoadError, match=r"model\.safetensors changed while it was being read"):
        load_with(Rewriting(lambda: other.replace(file)), tmp_path / "old")


def test_a_config_that_changes_meanwhile_is_noticed(tmp_path):
    config = build_model(tmp_path) / "config.json"
    changed = json.loads(config.read_text()) | {"rope_theta": 5.0}
    with pytest.raises(LoadError, match=r"config\.json changed while it was being read"):
        load_with(Rewriting(lambda: config.write_text(json.dumps(changed))), tmp_path)


def test_what_nobody_changes_is_loaded(tmp_path):
    build_model(tmp_path)
    notes = tmp_path / "notes.txt"
    assert load_with(Rewriting(lambda: notes.write_text("not part of the model")), tmp_path) is not None


def load_with(model_class, path):
    with readable_files("m", path):
        return from_pretrained(ModelSpec("m", path, device="cpu"), torch.device("cpu"), model_class)


def test_tensors_are_read_whole_or_not_at_all(tmp_path):
    file = build_model(tmp_path) / "model.safetensors"
    weights = open_weights([file])
    name = max(weights, key=lambda name: weights[name].start)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(OSError, match=r"model\.safetensors is truncated"):
        weights[name][...]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool]
)
def test_tensors_are_those_of_the_library(tmp_path, dtype):
    from safetensors.torch import load_file, save_file

    shapes = {"a scalar": (), "nothing": (0, 3), "small": (3, 5), "large": (1025, 2049)}
    made = {name: (torch.rand(shape) * 100).to(dtype) for name, shape in shapes.items()}
    save_file(made, tmp_path / "x.safetensors", metadata={"format": "pt"})
    expected = load_file(tmp_path / "x.safetensors")
    weights = open_weights([tmp_path / "x.safetensors"])
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        read = weights[name][...]
        assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read.double(), tensor.double())
