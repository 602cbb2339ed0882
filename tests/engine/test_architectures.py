"""Every architecture of docs/models.md: computed as transformers computes it, or refused in a sentence."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AttentionInterface

from inference.engine.embedding.embedder import load_embedder
from inference.engine.errors import UnsupportedModelError
from inference.engine.kernels import attention as attention_module
from inference.engine.kernels import native
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model
from inference.engine.models.sites import attach, site_width
from inference.files.architectures import EXACT, REFUSED, architecture_problem
from inference.files.sources import ModelSource, SourceError, check_directory
from inference.interventions import SITE_KINDS, Intervention, Site, VectorEdit
from tests.builders import build_model
from tests.engine.harness import EngineHarness
from tests.engine.tiny_architectures import MAX_LENGTH, write_tiny_model

pytestmark = pytest.mark.slow

PROMPTS = [tuple(3 + (11 * i + 7 * j) % 300 for j in range(length)) for i, length in enumerate((23, 9))]
NUM_TOKENS = 16


@pytest.mark.parametrize("model_type", [row.model_type for row in EXACT])
def test_exact_alone_and_in_chunks_beside_another_on_both_caches(tmp_path, model_type):
    reference = write_tiny_model(tmp_path, model_type)
    loaded = load_model(ModelSpec("tiny", tmp_path, dtype="float32", device="cpu"))
    has_long_rope = any(getattr(m, "rope_type", "") == "longrope" for m in reference.modules())
    expected = [eager_tokens(reference, prompt, MAX_LENGTH if has_long_rope else 0) for prompt in PROMPTS]
    for backend in ("contiguous", "paged"):
        alone = EngineHarness(loaded, kv_cache_backend=backend).generate(prompt=PROMPTS[0], max_tokens=NUM_TOKENS)
        assert alone.token_ids == expected[0], backend
        together = EngineHarness(loaded, kv_cache_backend=backend, max_prefill_tokens=7, prefix_cache=False)
        got = [together.add(prompt=prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS]
        together.run()
        assert [transcript.token_ids for transcript in got] == expected, backend


def eager_tokens(reference, prompt: tuple[int, ...], filled_to: int = 0) -> list[int]:
    """Greedy, by whole forward passes of transformers' own module, without any cache.

    LongRoPE is read with the factors for the longest text served, which is that of a text filled up to that length.
    """
    tokens = list(prompt)
    for _ in range(NUM_TOKENS):
        ids = torch.tensor([tokens + [3] * (filled_to - len(tokens))])
        with torch.inference_mode():
            logits = reference(input_ids=ids, use_cache=False).logits[0, len(tokens) - 1]
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.model_type)
def test_refused_before_its_weights_are_read(tmp_path, row):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": row.model_type, "architectures": ["AnyForCausalLM"]})
    )
    with pytest.raises(SourceError, match=f"^It is a {row.model_type} model .* cannot be served: it {row.refusal[:8]}"):
        check_directory(tmp_path, ModelSource(str(tmp_path)))


UNBUILDABLE = {"qwen3_5", "llama4"}  # the text model in it is what is built


@pytest.mark.parametrize("model_type", [row.model_type for row in REFUSED if row.model_type not in UNBUILDABLE])
def test_refused_by_what_it_computes_too(tmp_path, model_type):
    """So the list refuses nothing that would work, and a model of an unknown name is refused for the same reasons."""
    write_tiny_model(tmp_path, model_type)
    with pytest.raises(UnsupportedModelError, match=r"^tiny is a \w+, which is not supported: .+\. docs/models.md"):
        load_model(ModelSpec("tiny", tmp_path, dtype="float32", device="cpu"))


def test_no_architecture_is_listed_twice():
    names = [row.model_type for row in (*EXACT, *REFUSED)]
    assert len(names) == len(set(names)) >= 35
    assert all(architecture_problem({"model_type": row.model_type}) == "" for row in EXACT)


@pytest.mark.parametrize("max_length", [16, 17, MAX_LENGTH])
@pytest.mark.parametrize("model_type", ["phi3", "phimoe"])
def test_long_rope_reads_every_text_as_the_longest_one_served(tmp_path, model_type, max_length):
    """Below and above the original context of 16 tokens: as transformers reads a text of the length served."""
    reference = write_tiny_model(tmp_path, model_type)
    loaded = load_model(ModelSpec("tiny", tmp_path, dtype="float32", device="cpu", max_seq_len=max_length))
    harness = EngineHarness(loaded, max_prefill_tokens=5, prefix_cache=False)
    for prompt in (PROMPTS[1], PROMPTS[0]):
        if len(prompt) + 7 > max_length:
            continue
        got = [harness.add(prompt=p, max_tokens=7) for p in (prompt, tuple(reversed(prompt)), prompt[:2])]
        harness.run()
        assert got[0].token_ids == eager_tokens(reference, prompt, filled_to=max_length)[:7]


def test_long_rope_is_another_reading_beyond_the_original_context(tmp_path):
    """The test above would pass with any frequencies if they did not matter."""
    reference = write_tiny_model(tmp_path, "phi3")
    prompt = PROMPTS[1]
    assert eager_tokens(reference, prompt, filled_to=MAX_LENGTH) != eager_tokens(reference, prompt)


def test_long_rope_of_an_embedding_model_does_not_look_at_the_other_texts(tmp_path):
    write_tiny_model(tmp_path, "phi3")
    loaded = load_embedder(ModelSpec("tiny", tmp_path, dtype="float32", device="cpu", kind="embedding"))
    ids = torch.tensor([[3 + 7 * i % 300 for i in range(30)]] * 2)
    mask = torch.ones_like(ids)
    mask[0, 9:] = 0
    with torch.inference_mode():
        alone = loaded.vectors(ids[:1, :9], mask[:1, :9], torch.zeros_like(ids[:1, :9]))
        beside = loaded.vectors(ids, mask, torch.zeros_like(ids))
    assert torch.allclose(alone[0], beside[0], atol=1e-5)


@pytest.mark.parametrize("weights", ["native", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("model_type", ["gpt_neo", "gpt_oss"])
def test_the_self_check_passes_in_each_dtype_and_with_int8_weights(tmp_path, model_type, dtype, weights):
    write_tiny_model(tmp_path, model_type)
    assert load_model(ModelSpec("tiny", tmp_path, dtype=dtype, device="cpu", weights=weights)).dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["native", "int8"])
def test_the_self_check_finds_what_the_kernels_compute_wrongly(tmp_path, monkeypatch, dtype, weights):
    """Keys that are a little off, as a fault of a kernel or of a fused layer would have them."""
    path = build_model(tmp_path)
    packed = attention_module.packed_attention

    def wrong(module, query, key, *args, **kwargs):
        return packed(module, query, key.roll(1, 2), *args, **kwargs)

    monkeypatch.setitem(AttentionInterface._global_mapping, attention_module.NAME, wrong)
    with pytest.raises(UnsupportedModelError, match="differ from transformers' by"):
        load_model(ModelSpec("tiny", path, dtype=dtype, device="cpu", weights=weights))


def test_values_that_are_not_finite_are_refused_with_the_dtype(tmp_path):
    module = write_tiny_model(tmp_path, "llama")
    with torch.no_grad():
        module.model.layers[1].mlp.down_proj.weight.fill_(float("inf"))
    module.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="not finite in bfloat16; choose another dtype"):
        load_model(ModelSpec("tiny", tmp_path, dtype="bfloat16", device="cpu"))


@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.parametrize("model_type", ["gpt_neo", "gpt_oss"])
def test_local_layers_and_sinks_on_both_kinds_of_kernels(tmp_path, model_type, kernels):
    """Prompts longer than a window and a block, decoded beyond them."""
    reference = write_tiny_model(tmp_path, model_type)
    loaded = load_model(ModelSpec("tiny", tmp_path, dtype="float32", device="cpu"))
    prompt = tuple(3 + (7 * j) % 300 for j in range(40))
    if kernels == "torch":
        native.deactivate()
    try:
        for backend in ("contiguous", "paged"):
            harness = EngineHarness(loaded, kv_cache_backend=backend, max_prefill_tokens=13)
            got = harness.generate(prompt=prompt, max_tokens=NUM_TOKENS)
            assert got.token_ids == eager_tokens(reference, prompt), backend
    finally:
        native.activate()


@pytest.mark.parametrize("kind", SITE_KINDS)
@pytest.mark.parametrize("model_type", ["gpt_neo", "gpt_oss"])
def test_steering_acts_at_every_site_of_them(tmp_path, model_type, kind):
    """As a hook on the module of transformers' own model does."""
    reference = write_tiny_model(tmp_path, model_type)
    loaded = load_model(ModelSpec("tiny", tmp_path, dtype="float32", device="cpu"))
    site = Site(1, kind)
    step = torch.randn(site_width(reference, site), generator=torch.Generator().manual_seed(1))
    edit = VectorEdit(site, step, phase="both", special_tokens=True)
    harness = EngineHarness(loaded)
    steered = harness.add(prompt=PROMPTS[0], max_tokens=NUM_TOKENS, intervention=Intervention("step", (edit,)))
    plain = harness.add(prompt=PROMPTS[0], max_tokens=NUM_TOKENS)
    harness.run()
    assert plain.token_ids == eager_tokens(reference, PROMPTS[0])
    detach = attach(reference, site, lambda hidden: hidden + step)
    expected = eager_tokens(reference, PROMPTS[0])
    detach()
    assert steered.token_ids == expected != plain.token_ids
