"""What a model will need is known before it is loaded, from its config and its files' headers."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from inference.engine.cache.prefix_keys import PREFIX_BLOCK
from inference.engine.config import READ_PLACES, EngineConfig
from inference.engine.errors import LoadError
from inference.engine.messages import PromptLogprobsEvent, ScoresEvent, Scoring
from inference.engine.model_engine import ModelEngine
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model
from inference.engine.models.memory_estimate import READ_COPIES, estimate_memory
from inference.engine.models.self_check import probe_layouts
from inference.files.architectures import EXACT
from tests.builders import ARCHITECTURES, build_model
from tests.engine.harness import EngineHarness
from tests.engine.tiny_architectures import write_tiny_model

pytestmark = pytest.mark.slow


def estimate(path, **fields):
    return estimate_memory(ModelSpec("m", path, device="cpu", **fields), max_tokens=256, max_rows=16)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_are_estimated_to_a_thousandth(tmp_path, architecture, dtype, is_tied):
    path = build_model(tmp_path, architecture, tie_word_embeddings=is_tied)
    loaded = load_model(ModelSpec("m", path, dtype=dtype, device="cpu"))

    assert estimate(path, dtype=dtype).weights == pytest.approx(loaded.memory_bytes, rel=1e-3)


def test_a_tied_head_that_is_in_the_file_all_the_same_counts_once(tmp_path):
    path = build_model(tmp_path, tie_word_embeddings=True)
    before = estimate(path).weights
    weights = load_file(path / "model.safetensors")
    save_file(weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}, path / "model.safetensors")

    assert estimate(path).weights == before


def test_files_are_taken_from_the_index(tmp_path):
    path = build_model(tmp_path)
    whole = estimate(path).weights
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, mine in parts.items():
        save_file({name: weights[name] for name in mine}, path / file)
    save_file({"x": torch.zeros(1000, 1000)}, path / "original.safetensors")
    index = {"weight_map": {name: file for file, mine in parts.items() for name in mine}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))

    assert estimate(path).weights == whole


def test_no_weights_are_read(tmp_path):
    """The file is as long as its header says, but a hole: 4 TB of weights that no machine could read."""
    path = build_model(tmp_path)
    size = 2**42
    header = json.dumps({"model.w": {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, size]}}).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)

    assert estimate(path, dtype="bfloat16").weights == size // 2


def test_keys_and_values_of_one_long_conversation(tmp_path):
    """2 (keys, values) * 4 layers * 2 heads * 8 dimensions * tokens * bytes."""
    path = build_model(tmp_path, max_position_embeddings=100_000)

    assert estimate(path, dtype="float32").kv == 2 * 4 * 2 * 8 * 4096 * 4
    assert estimate(path, dtype="bfloat16", max_seq_len=64).kv == 2 * 4 * 2 * 8 * 64 * 2


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_most_for_keys_and_values_is_what_the_cache_takes_at_most(tmp_path, architecture):
    """Of a full batch of the longest sequences, as the engine reckons it from the loaded model."""
    path = build_model(tmp_path, architecture)
    spec = ModelSpec("m", path, dtype="float32", device="cpu")
    most = estimate(path, dtype="float32").most_kv
    loaded = load_model(spec)
    contiguous, paged = (
        ModelEngine(loaded, EngineConfig(kv_cache_bytes=2**40, kv_cache_backend=backend)).stats().limits
        for backend in ("contiguous", "paged")
    )

    assert (contiguous.kv_cache_backend, contiguous.kv_bytes) == ("contiguous", most)
    assert contiguous.kv_tokens == 16 * (256 + PREFIX_BLOCK)
    assert paged.kv_cache_backend == "paged"
    assert paged.kv_bytes <= most, "blocks of a window are fewer, and there is no slot to round up"
    assert paged.kv_tokens >= 16 * 256
    assert (paged.max_seq_len, paged.max_batch_size) == (256, 16)


def test_what_is_set_for_keys_and_values_is_estimated(tmp_path):
    spec = ModelSpec("m", build_model(tmp_path), device="cpu")
    found = estimate_memory(spec, max_tokens=256, max_rows=16, kv_bytes=12_345)
    much = estimate_memory(spec, max_tokens=256, max_rows=16, kv_bytes=2**40)

    assert found.kv == 12_345
    assert much.kv == much.most_kv


def test_activations_grow_with_the_step(tmp_path):
    spec = ModelSpec("m", build_model(tmp_path), device="cpu")
    small, large = (
        estimate_memory(spec, max_tokens=tokens, max_rows=1) for tokens in (READ_PLACES, READ_PLACES + 1000)
    )

    assert large.activations - small.activations == 1000 * (8 * 32 + 3 * 64) * 4
    assert large.total == large.weights + large.kv + large.activations


def test_int8_matrices_are_a_byte_an_element_and_tables_are_not():
    from inference.engine.models.memory_estimate import _loaded_bytes
    from inference.engine.models.weight_files import WeightHeader

    matrix = WeightHeader("model.layers.0.mlp.up_proj.weight", (64, 32), "BF16")
    table = WeightHeader("model.embed_tokens.weight", (64, 32), "BF16")
    norm = WeightHeader("model.norm.weight", (32,), "BF16")
    stored = WeightHeader("model.layers.0.scale", (3,), "I64")

    assert _loaded_bytes(matrix, torch.bfloat16, "int8") == 64 * 32 + 64 * 4
    assert _loaded_bytes(table, torch.bfloat16, "int8") == 64 * 32 * 2
    assert _loaded_bytes(norm, torch.bfloat16, "int8") == 64
    assert _loaded_bytes(stored, torch.bfloat16, "int8") == 24


def test_pickled_weights_are_as_large_as_their_files(tmp_path):
    path = build_model(tmp_path)
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()

    assert estimate(path, allow_pickle=True).weights == (path / "pytorch_model.bin").stat().st_size


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "no-such-model"}'),
        ("model.safetensors", b"\xff" * 100),
        ("model.safetensors", b""),
        ("model.safetensors.index.json", b"{}"),
        ("model.safetensors.index.json", b'{"weight_map": {"x": "../secret.safetensors"}}'),
    ],
)
def test_a_damaged_directory_is_a_readable_error(tmp_path, file, content):
    path = build_model(tmp_path)
    if file.endswith("index.json"):  # which a single file goes before
        (path / "model.safetensors").unlink()
    (path / file).write_bytes(content)

    with pytest.raises(LoadError, match="m could not be loaded"):
        estimate(path)


def test_an_unknown_dtype(tmp_path):
    with pytest.raises(LoadError, match="dtype must be one of"):
        estimate(tmp_path, dtype="int3")


@pytest.mark.parametrize("model_type", [row.model_type for row in EXACT])
def test_keys_and_values_of_every_architecture_are_what_its_layers_store(tmp_path, model_type):
    """As the cache is cut: read off a forward pass."""
    write_tiny_model(tmp_path, model_type)
    loaded = load_model(ModelSpec("m", tmp_path, dtype="float32", device="cpu"))
    stored = sum(layout.bytes_per_token for layout in probe_layouts(loaded.module))
    length = loaded.max_model_len + PREFIX_BLOCK

    assert estimate(tmp_path, dtype="float32").most_kv == 16 * length * stored
    assert estimate(tmp_path, dtype="float32").weights == pytest.approx(loaded.memory_bytes, rel=0.03)


@pytest.mark.parametrize(("model_type", "bytes_per_token"), [("deepseek_v2", 4_915_200), ("deepseek_v3", 4_997_120)])
def test_latent_attention_keeps_the_keys_and_values_of_every_query_head(tmp_path, model_type, bytes_per_token):
    """DeepSeek-V2's and V3's own shapes in bfloat16: 60 and 61 layers, 128 heads, keys of 128 + 64, values of 128."""
    CONFIG_MAPPING[model_type](dtype="bfloat16", **DEEPSEEK[model_type]).save_pretrained(tmp_path)
    save_file({"model.embed_tokens.weight": torch.zeros(1, 1)}, tmp_path / "model.safetensors")

    assert estimate(tmp_path, max_seq_len=4096).kv == 4096 * bytes_per_token


LATENT = {
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
}
DEEPSEEK = {
    "deepseek_v2": {"num_hidden_layers": 60, "num_attention_heads": 128, "num_key_value_heads": 128, **LATENT},
    "deepseek_v3": {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, **LATENT},
}


def test_a_prompt_s_log_probabilities_take_no_more_than_is_estimated(tmp_path):
    """Logits of a whole prompt are many times the rest of a step: few are made at once, and those are counted."""
    path = build_model(tmp_path, max_position_embeddings=1024)
    loaded = load_model(ModelSpec("tiny", path, dtype="float32", device="cpu"))
    sizes: list[int] = []
    loaded.module.register_forward_hook(lambda _, __, output: sizes.append(output.logits.numel()))
    harness = EngineHarness(loaded, max_batch_size=4, max_prefill_tokens=512, max_stall_factor=0.0)
    prompts = [tuple(3 + (7 * i + j) % 390 for j in range(n)) for i, n in enumerate((400, 300, 20))]
    asked = [harness.add(prompt=prompt, max_tokens=2, prompt_logprobs=1) for prompt in prompts]
    scored = harness.add(prompt=prompts[0], max_tokens=0, scoring=Scoring(tuple(range(5, 400))))
    harness.run()

    estimated = estimate_memory(ModelSpec("m", path, dtype="float32"), max_tokens=512, max_rows=4).activations
    assert 4 * READ_COPIES * max(sizes) < estimated
    assert max(sizes) <= (READ_PLACES + 4) * loaded.vocab_size
    for prompt, transcript in zip(prompts, asked, strict=True):
        event = next(e for e in transcript.events if isinstance(e, PromptLogprobsEvent))
        assert [p and p.token_id for p in event.logprobs] == [None, *prompt[1:]]
    assert isinstance(scored.events[0], ScoresEvent)
    assert len(scored.events[0].logprobs) == 395
