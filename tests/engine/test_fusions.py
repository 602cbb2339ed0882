"""Fused operations follow their formulas, models built of them transformers' own, and strangers stay untouched."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoModelForCausalLM

from inference.engine.kernels import native, step_inputs
from inference.engine.kernels.decoder_stack import DecoderStack
from inference.engine.kernels.fused_layers import FusedLayer, FusionReport, fuse
from inference.engine.kernels.linear_kinds import quantise
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model
from inference.interventions import Intervention, Site, VectorEdit
from tests.builders import ARCHITECTURES, build_model
from tests.engine.harness import EngineHarness

pytestmark = pytest.mark.slow

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
SIZES = [2, 8, 30, 64, 128, 1024, 2560]


@pytest.fixture(scope="module", autouse=True)
def built():
    if not native.activate().is_native:
        pytest.skip(f"no C++ kernels here: {native.active()}")


def close(got, expected, dtype):
    assert got.dtype is dtype
    np.testing.assert_allclose(got.double().numpy(), expected, atol=TOLERANCE[dtype] * np.abs(expected).max())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", SIZES)
def test_rms_norm(size, dtype):
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(5, 3, size + 2, generator=generator).to(dtype)[..., :size]
    weight = torch.randn(size, generator=generator).to(dtype)
    exact, w = x.double().numpy(), weight.double().numpy()
    normed = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6)
    for offset in (0.0, 1.0):
        close(torch.ops.millm_native.rms_norm(x, weight, 1e-6, offset), normed * (w + offset), dtype)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", SIZES)
def test_norm_and_rotation(size, dtype, normed):
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(4, 7, size, generator=generator).to(dtype)[:, 1:4]
    weight = torch.randn(size, generator=generator).to(dtype)
    angles = torch.randn(4, size // 2, generator=generator).repeat(1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    h, c, s = x.double().numpy(), cos.double().numpy()[:, None], sin.double().numpy()[:, None]
    if normed:
        h = h / np.sqrt((h**2).mean(-1, keepdims=True) + 1e-5) * (weight.double().numpy() + 1)
    rotated = np.concatenate([-h[..., size // 2 :], h[..., : size // 2]], -1)
    got = torch.ops.millm_native.norm_rotary(x, weight if normed else None, 1e-5, 1.0, cos, sin)
    close(got, h * c + rotated * s, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "size"), [(1, 3), (3, 64), (2, 1000), (40, 3072)])
def test_gate(rows, size, dtype):
    both = torch.randn(rows, 2 * size, generator=torch.Generator().manual_seed(rows)).to(dtype) * 6
    gate, up = both[:, :size], both[:, size:]
    g, u = gate.double().numpy(), up.double().numpy()
    close(torch.ops.millm_native.gate_mul(gate, up, "silu"), g / (1 + np.exp(-g)) * u, dtype)
    gelu = g / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
    close(torch.ops.millm_native.gate_mul(gate, up, "gelu_tanh"), gelu * u, dtype)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_fused_model_generates_what_transformers_does(tmp_path, architecture, tied):
    path = build_model(tmp_path, architecture, tie_word_embeddings=tied)
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    loaded = load_model(ModelSpec("tiny", path, dtype="float32", device="cpu"))
    assert not any(type(m) is nn.Linear for m in loaded.module.modules())
    for prompt in ((5, 6, 7), tuple(range(3, 40))):
        expected = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        got = EngineHarness(loaded).generate(prompt=prompt, max_tokens=24)
        assert got.token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_int8_model_is_the_plain_one_with_rounded_weights(tmp_path, architecture):
    path, prompt = build_model(tmp_path, architecture), tuple(range(3, 40))
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    for linear in (m for m in theirs.modules() if type(m) is nn.Linear):
        rounded, scales = quantise(linear.weight.detach())
        linear.weight.data = rounded * scales.unsqueeze(1)
    loaded = load_model(ModelSpec("tiny", path, dtype="float32", device="cpu", weights="int8"))
    plain = load_model(ModelSpec("tiny", path, dtype="float32", device="cpu"))
    assert loaded.memory_bytes < plain.memory_bytes
    expected = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None)
    got = EngineHarness(loaded).generate(prompt=prompt, max_tokens=12)
    assert got.token_ids == expected[0, len(prompt) :].tolist()


def fused_layers(module):
    return [m for m in module.modules() if isinstance(vars(m).get("forward"), FusedLayer)]


@pytest.mark.parametrize(("architecture", "norms"), [("llama", 9), ("qwen3", 17), ("gemma3", 25)])
def test_what_is_fused(tmp_path, architecture, norms):
    path = build_model(tmp_path, architecture)
    for dtype, weights in itertools.product(("float32", "bfloat16", "float16"), ("native", "int8")):
        loaded = load_model(ModelSpec("tiny", path, dtype=dtype, device="cpu", weights=weights))
        layers = len(fused_layers(loaded.module))
        expected = 4 if native.active().has_products and (dtype, weights) != ("float32", "native") else 0
        assert layers == expected, (dtype, weights)
        fused = [m for m in loaded.module.modules() if "forward" in vars(m)]
        assert len(fused) == norms + 4 + 4 + layers


@pytest.fixture(params=["bfloat16 native", "bfloat16 int8", "float32 int8", "bfloat16 w8a8"])
def fused_model(request, tmp_path):
    """Of each architecture, with all its layers fused."""

    def load(architecture):
        dtype, weights = request.param.split()
        if weights == "w8a8" and not native.active().has_int8:
            pytest.skip("this processor lacks the dot products of bytes")
        path = build_model(tmp_path, architecture, max_position_embeddings=256)
        loaded = load_model(ModelSpec("tiny", path, dtype=dtype, device="cpu", weights=weights))
        if not fused_layers(loaded.module):
            pytest.skip("this processor lacks the products")
        return loaded

    return load


def transcripts(loaded, lengths=(3, 20, 41), intervention=None):
    """Tokens and log-probabilities of sequences that decode together."""
    harness = EngineHarness(loaded)
    found = [
        harness.add(prompt=tuple(range(5, 5 + n)), max_tokens=30, logprobs=2, intervention=intervention)
        for n in lengths
    ]
    harness.run()
    return [t.token_ids for t in found], [p.logprob for t in found for p in t.logprobs]


@pytest.fixture
def all_outputs(monkeypatch):
    monkeypatch.setattr(step_inputs, "MOST_NEEDED", 0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_outputs_that_nobody_uses_are_left_out(fused_model, architecture, monkeypatch):
    loaded = fused_model(architecture)
    rows = []
    run_needed = FusedLayer._run_needed

    def count(layer, x, cos, sin, batch):
        rows.append((layer.parts.layer, len(x), len(batch.outputs)))
        return run_needed(layer, x, cos, sin, batch)

    monkeypatch.setattr(FusedLayer, "_run_needed", count)
    prompts = [tuple(range(5, 5 + n)) for n in (3, 20, 41)]
    last = len(fused_layers(loaded.module)) - 1

    def first_logprobs(**options):
        harness = EngineHarness(loaded, max_prefill_tokens=32)  # so that a step ends within a prompt
        found = [harness.add(prompt=prompt, max_tokens=1, logprobs=0, **options) for prompt in prompts]
        harness.run()
        return [[p.logprob for p in t.logprobs] for t in found]

    left_out = first_logprobs()
    assert {layer for layer, _, _ in rows} == {last}
    assert sum(tokens for _, tokens, _ in rows) == 64
    assert all(needed <= 3 for _, _, needed in rows)
    rows.clear()
    vector = torch.zeros(loaded.hidden_size)
    vector[0] = 1e-6
    steered = first_logprobs(intervention=Intervention("last", (VectorEdit(Site(last, "resid_post"), vector),)))
    first_logprobs(prompt_logprobs=0)
    assert not rows  # the residual behind the layer is edited, and all logits are needed
    monkeypatch.setattr(step_inputs, "MOST_NEEDED", 0)
    np.testing.assert_allclose(left_out, first_logprobs(), atol=0.05)
    np.testing.assert_allclose(left_out, steered, atol=0.05)


@pytest.mark.usefixtures("all_outputs")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_fused_layer_is_the_layer(fused_model, architecture):
    loaded = fused_model(architecture)
    tokens, logprobs = transcripts(loaded)
    for layer in fused_layers(loaded.module):
        layer.forward = layer.forward.original
    plain_tokens, plain_logprobs = transcripts(loaded)
    assert tokens == plain_tokens
    np.testing.assert_allclose(logprobs, plain_logprobs, atol=1e-5)


@pytest.mark.parametrize("part", ["mlp", "self_attn.o_proj", "self_attn.q_proj"])
def test_hooks_inside_a_fused_layer_run(fused_model, part):
    loaded = fused_model("llama")
    module = fused_layers(loaded.module)[1].get_submodule(part)
    runs = []
    before = transcripts(loaded)
    handle = module.register_forward_hook(lambda module, args, output: runs.append(len(output)) or output * 2)
    steered = transcripts(loaded)
    handle.remove()
    assert len(runs) >= 30  # each decode step
    assert steered != before
    assert transcripts(loaded) == before


@pytest.mark.usefixtures("all_outputs")
@pytest.mark.parametrize("kind", ["mlp_raw", "mlp_out"])
def test_a_fused_layer_does_not_skip_an_edit_of_its_mlp(fused_model, kind):
    """Gemma 3 has a norm behind the MLP, inside of the fused layer: both sites are steered as in the plain layer."""
    loaded = fused_model("gemma3")
    step = torch.randn(loaded.hidden_size, generator=torch.Generator().manual_seed(1)) * 2
    intervention = Intervention(f"add at {kind}", (VectorEdit(Site(1, kind), step),))
    unsteered, (steered, logprobs) = transcripts(loaded), transcripts(loaded, intervention=intervention)
    for layer in fused_layers(loaded.module):
        layer.forward = layer.forward.original
    plain, plain_logprobs = transcripts(loaded, intervention=intervention)
    assert steered == plain
    np.testing.assert_allclose(logprobs, plain_logprobs, atol=1e-5)
    assert unsteered != (steered, logprobs)


# Stacks


def stacks(module):
    """The numbers of layers of each stack of a model."""
    return [
        len(stack.layers)
        for stack in {id(each.forward.stack): each.forward.stack for each in fused_layers(module)}.values()
    ]


@pytest.mark.parametrize(("architecture", "expected"), [("llama", [4]), ("qwen3", [4])])
def test_layers_with_nothing_between_are_a_stack(fused_model, architecture, expected):
    assert stacks(fused_model(architecture).module) == expected


def test_layers_with_other_rotary_embeddings_are_not_in_one_stack(fused_model):
    """Those of Gemma 3 with a sliding window have their own."""
    loaded = fused_model("gemma3")
    windows = [layer.forward.parts.look[1] for layer in fused_layers(loaded.module)]
    runs = [len(list(run)) for _, run in itertools.groupby(windows)]
    assert len(runs) > 1
    assert stacks(loaded.module) == runs


HOOKS = ("output", "input", "inside")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=12)
@given(hooked=st.dictionaries(st.integers(0, 3), st.sampled_from(HOOKS), max_size=3))
def test_a_stack_computes_its_layers_and_stops_at_hooks(stacked_model, architecture, hooked):
    """Each hook sees, and changes, what it would without stacks."""
    loaded = stacked_model(architecture)
    layers = fused_layers(loaded.module)
    stacked = [layer.forward for layer in layers]

    def run():
        seen, handles = [], []

        def scale(module, args, output):
            seen.append(output.clone())
            return output * 1.25

        def scale_input(module, args):
            seen.append(args[0].clone())
            return (args[0] * 1.25, *args[1:])

        for number, kind in hooked.items():
            layer = layers[number]
            if kind == "input":
                handles.append(layer.register_forward_pre_hook(scale_input))
            else:
                handles.append((layer if kind == "output" else layer.mlp).register_forward_hook(scale))
        try:
            return transcripts(loaded, lengths=(3, 20)), seen
        finally:
            for handle in handles:
                handle.remove()

    got, seen = run()
    for layer, forward in zip(layers, stacked, strict=True):
        layer.forward = replace(forward, stack=DecoderStack([forward.parts]), place=0)
    try:
        expected, seen_alone = run()
    finally:
        for layer, forward in zip(layers, stacked, strict=True):
            layer.forward = forward
    assert got == expected
    assert len(seen) == len(seen_alone)
    assert all(torch.equal(a, b) for a, b in zip(seen, seen_alone, strict=True))


@pytest.fixture(scope="module")
def stacked_model(tmp_path_factory):
    """Of each architecture, loaded once, with hooks changing nothing else than their layer."""

    @cache
    def load(architecture):
        path = build_model(tmp_path_factory.mktemp(architecture), architecture, max_position_embeddings=256)
        loaded = load_model(ModelSpec("tiny", path, dtype="bfloat16", device="cpu"))
        if not fused_layers(loaded.module):
            pytest.skip("this processor lacks the products")
        return loaded

    return load


def test_one_call_computes_all_layers(stacked_model, monkeypatch):
    loaded, calls = stacked_model("llama"), []
    run = DecoderStack.run

    def count(stack, place, x, *rest):
        calls.append((place, len(x)))
        return run(stack, place, x, *rest)

    monkeypatch.setattr(DecoderStack, "run", count)
    EngineHarness(loaded).generate(prompt=(5, 6, 7), max_tokens=9)
    last = len(fused_layers(loaded.module)) - 1
    assert calls == [(last, 1), *[(0, 1)] * 8]  # the last token of the prompt, and the others


def test_layers_with_something_between_are_not_in_one_stack(tmp_path, monkeypatch):
    from transformers.models.llama.modeling_llama import LlamaModel

    forward = LlamaModel.forward

    def with_more_between(self, **kwargs):
        handles = [layer.register_forward_hook(lambda module, args, output: output + 0) for layer in self.layers]
        try:
            return forward(self, **kwargs)
        finally:
            for handle in handles:
                handle.remove()

    monkeypatch.setattr(LlamaModel, "forward", with_more_between)
    loaded = load_model(ModelSpec("tiny", build_model(tmp_path), dtype="bfloat16", device="cpu"))
    assert fused_layers(loaded.module) or not native.active().has_products
    assert set(stacks(loaded.module)) <= {1}


class OddRMSNorm(nn.Module):
    """Looks like one, but adds a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight + 0.5


class OddMLP(nn.Module):
    """Looks like one, but swaps the parts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.act_fn = nn.SiLU()
        self.register_buffer("dtype_of_weights", torch.zeros(1))

    def forward(self, x):
        return self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))


def test_what_only_looks_alike_stays():
    assert fuse(nn.ModuleList([OddRMSNorm(), OddMLP()])) == FusionReport(0, 0, 0, 0)


def test_an_attention_that_rotates_otherwise_stays(tmp_path, monkeypatch):
    """As if a later transformers turned neighbouring values instead of halves."""
    from transformers.models.llama import modeling_llama

    def neighbours(q, k, cos, sin, unsqueeze_dim=1):
        def turn(x):
            a, b = x[..., ::2], x[..., 1::2]
            return torch.stack([-b, a], -1).flatten(-2)

        c, s = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return q * c + turn(q) * s, k * c + turn(k) * s

    path = build_model(tmp_path)
    known, changed = (AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager") for _ in range(2))
    assert fuse(known).attentions == 4
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", neighbours)
    assert fuse(changed).attentions == 0
