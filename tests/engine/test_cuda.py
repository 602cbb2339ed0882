"""The engine on a GPU: ``pytest -m gpu``. Skipped where there is none.

Tokens are compared in float32, where nothing but the order of sums differs; 16 bits are compared by their numbers.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from inference.engine.cache.layout import LayerLayout
from inference.engine.cache.plan import make_cache
from inference.engine.cache.prefix_keys import PREFIX_BLOCK
from inference.engine.config import EngineConfig
from inference.engine.kernels.gpu import has_triton
from inference.engine.kernels.int8_trial import few_packed_rows, int8_problem
from inference.engine.kernels.linear_kinds import GpuInt8Linear, quantise
from inference.engine.kernels.native import fallback
from inference.engine.kernels.native.steering_tensors import NORMALIZATIONS
from inference.engine.kernels.varlen_attention import (
    PAGE_TOKENS,
    choose_attention,
    flash_attention_of_copies,
    torch_attention,
)
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from inference.engine.models.self_check import probe_layouts
from inference.interventions import (
    Edit,
    FeatureColumns,
    FeatureRule,
    Intervention,
    NormEdit,
    ReaderEdit,
    Site,
    VectorEdit,
)
from tests.builders import ARCHITECTURES, build_model
from tests.engine.harness import EngineHarness, Transcript, reference_tokens
from tests.engine.test_native_steering import DTYPES as STEERED_DTYPES
from tests.engine.test_native_steering import build_case as build_steering
from tests.engine.test_native_steering import formula
from tests.engine.test_steering import reader, vector
from tests.engine.test_varlen_attention import build_case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROMPTS = [tuple(range(3 + 7 * i, 3 + 7 * i + length)) for i, length in enumerate((1, 4, 19, 33, 140))]
NUM_TOKENS = 40
GPU = torch.device("cuda:0")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("cuda-models")
    return {name: build_model(root / name, name) for name in ARCHITECTURES}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def exact(architecture, folders) -> LoadedModel:
    return load_model(ModelSpec("tiny", folders[architecture], dtype="float32", device="cuda"))


@pytest.fixture(scope="module")
def rough(architecture, folders) -> LoadedModel:
    return load_model(ModelSpec("tiny", folders[architecture], dtype="bfloat16", device="cuda"))


def run_all(loaded: LoadedModel, **config: Any) -> tuple[EngineHarness, dict[tuple[int, ...], Transcript]]:
    harness = EngineHarness(loaded, max_prefill_tokens=32, **config)
    got = {prompt: harness.add(prompt=prompt, max_tokens=NUM_TOKENS, logprobs=1) for prompt in PROMPTS}
    harness.run()
    return harness, got


@pytest.mark.parametrize("cuda_graphs", ["auto", "off"])
@pytest.mark.parametrize("backend", ["auto", "paged", "contiguous"])
def test_greedy_equality(exact, backend, cuda_graphs):
    harness, got = run_all(exact, kv_cache_backend=backend, cuda_graphs=cuda_graphs)
    for prompt, transcript in got.items():
        assert transcript.token_ids == reference_tokens(exact, prompt, NUM_TOKENS)
    graphs = harness.engine.graphs
    assert (graphs is None) == (cuda_graphs == "off")
    if graphs is not None:
        assert graphs.num_captured > 1, str(graphs)
        assert harness.engine.steps_ahead > 0


def test_preempted_and_prefix_cached(exact):
    prompts = [tuple(3 + (5 * i + j) % 390 for j in range(40)) for i in range(4)]
    token_bytes = sum(layout.bytes_per_token for layout in probe_layouts(exact.module))
    harness = EngineHarness(
        exact, kv_cache_backend="paged", kv_cache_bytes=160 * token_bytes, max_seq_len=128, max_stall_factor=0.0
    )
    for _ in range(2):
        got = {prompt: harness.add(prompt=prompt, max_tokens=60) for prompt in prompts}
        harness.run()
        for prompt, transcript in got.items():
            assert transcript.token_ids == reference_tokens(exact, prompt, 60)
    assert harness.engine.num_preemptions > 0


# The flash kernel


def needs_flash() -> None:
    if torch.cuda.get_device_capability(GPU)[0] < 8:
        pytest.skip("torch's flash kernel needs compute capability 8.0")


@pytest.mark.parametrize("window", [0, 1, 100, 4096])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(8, 8, 64), (16, 8, 128), (4, 1, 256), (6, 2, 80)])
@pytest.mark.parametrize("page", [0, 32, PAGE_TOKENS])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_flash_kernel_agrees_with_plain_torch(heads, kv_heads, head_dim, window, page, dtype):
    """That is: it is chosen. Pages of 32 and torch before 2.12 take copies, which the reason tells."""
    needs_flash()
    found = choose_attention([LayerLayout(kv_heads, head_dim, head_dim, dtype, window)], heads, GPU, page=page)
    assert found.kernel is not None, found.reason


@pytest.mark.parametrize("queries", [(1, 1, 1), (9, 1, 4)])
@pytest.mark.parametrize("window", [0, 7])
def test_what_is_no_number_and_nobodys_harms_nobody(queries, window):
    needs_flash()
    case = {"queries": queries, "lengths": [30, 5, 70], "kv_heads": 2, "group": 2, "softcap": 0.0, "slack": 0}
    query, places, part, look = build_case(case | {"page": 32, "window": window, "seed": 1}, torch.bfloat16)
    for tensors in (places, part):
        for name in tensors.__dataclass_fields__:
            value = getattr(tensors, name)
            if isinstance(value, torch.Tensor):
                object.__setattr__(tensors, name, value.to(GPU))
    query = query.to(GPU)
    expected = torch_attention(query, places, part, look)
    got = flash_attention_of_copies(query, places, part, look)
    assert torch.isfinite(expected).all()
    assert torch.allclose(got.float(), expected.float(), atol=2e-2)


def first_logprobs(got: dict[tuple[int, ...], Transcript]) -> list[float]:
    return [t.logprobs[0].logprob for t in got.values()]


@pytest.mark.parametrize("backend", ["auto", "paged", "contiguous"])
def test_flash_and_torch_say_nearly_the_same_in_16_bits(rough, backend):
    needs_flash()
    (_, by_flash), (_, by_torch) = (
        run_all(rough, kv_cache_backend=backend, attention_kernel=kernel) for kernel in ("auto", "torch")
    )
    assert first_logprobs(by_flash) == pytest.approx(first_logprobs(by_torch), abs=0.3)


def test_graphs_and_single_kernels_say_nearly_the_same_in_16_bits(rough):
    (captured, ours), (_, theirs) = (run_all(rough, cuda_graphs=graphs) for graphs in ("auto", "off"))
    assert captured.engine.graphs is not None
    assert captured.engine.graphs.num_captured > 1, str(captured.engine.graphs)
    for prompt in PROMPTS:
        same = [a == b for a, b in zip(ours[prompt].token_ids, theirs[prompt].token_ids, strict=True)]
        upto = same.index(False) if False in same else len(same)
        pairs = zip(ours[prompt].logprobs[:upto], theirs[prompt].logprobs[:upto], strict=True)
        for a, b in pairs:
            assert a.logprob == pytest.approx(b.logprob, abs=0.3)


def test_pages_are_small_where_our_kernel_reads_them_and_large_for_the_flash_kernel(rough):
    needs_flash()
    cache = make_cache(rough, EngineConfig(kv_cache_backend="paged"), 1024)
    found = choose_attention(cache.pool.layouts, 4, GPU, page=cache.policy.block_size)
    assert found.kernel is not None
    assert found.is_complete == has_triton()
    assert (cache.policy.block_size == PREFIX_BLOCK) == (has_triton() or found.kernel is flash_attention_of_copies)


# Steering


def interventions() -> list[Intervention | None]:
    rules = (FeatureRule(3, gain=0.0, offset=6.0), FeatureRule(6, lower=4.0))
    edits: list[tuple[Edit, ...]] = [
        (VectorEdit(Site(1), vector(32)),),
        (VectorEdit(Site(2, "mlp_out"), vector(32, 2), phase="generation"),),
        (ReaderEdit(Site(1), reader(), rules),),
        (ReaderEdit(Site(2), Asked(reader()), rules), NormEdit(Site(2))),
    ]
    return [None, *(Intervention(f"profile {i}", edit) for i, edit in enumerate(edits))]


class Asked:
    """A reader that is asked in each step, as a TopK SAE is; its weights follow the hidden states."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.key, self.d_in, self.d_sae = inner, "asked", inner.d_in, inner.d_sae

    def columns(self, features):
        return FeatureColumns(self._inner.w_dec[features])

    def activations(self, h, features):
        for name in ("w_enc", "w_dec", "bias"):
            setattr(self._inner, name, getattr(self._inner, name).to(h.device))
        return self._inner.activations(h, features)


@pytest.mark.parametrize("dtype", sorted(STEERED_DTYPES))
def test_the_steering_kernel_agrees_with_plain_torch(dtype):
    from inference.engine.kernels.gpu import steering

    assert steering.works_on(torch.device("cuda"))
    compared = 0
    for seed, width in enumerate((2, 7, 200, 1024, 4096) * 6):
        kinds = NORMALIZATIONS[: 1 + seed % 3]
        case = {"dtype": dtype, "width": width, "tokens": 1 + 7 * seed, "rows": 5, "normalizations": kinds}
        hidden, rows, tables, given = build_steering(case | {"has_given": seed % 2 == 0, "seed": seed})
        if formula(hidden, rows, tables, given) is None:  # a gate is open or closed by rounding
            continue
        expected, expected_changes = fallback.steer(hidden, rows, tables, given)
        moved = {field.name: getattr(tables, field.name) for field in fields(tables) if field.name != "normalizations"}
        on_device = replace(tables, **{name: tensor.cuda() for name, tensor in moved.items()})
        out, changes = steering.steer(hidden.cuda(), rows.cuda(), on_device, None if given is None else given.cuda())
        tolerance = STEERED_DTYPES[dtype] * (1 + float(expected.float().norm(dim=-1).max()))
        assert torch.allclose(out.cpu().float(), expected.float(), atol=tolerance), case
        assert torch.allclose(changes.cpu(), expected_changes, atol=tolerance), case
        compared += 1
    assert compared > 5


@pytest.mark.parametrize("cuda_graphs", ["auto", "off"])
def test_steered_as_on_the_cpu(folders, architecture, exact, cuda_graphs):
    on_cpu = load_model(ModelSpec("tiny", folders[architecture], dtype="float32", device="cpu"))
    tokens = []
    for loaded in (on_cpu, exact):
        harness = EngineHarness(loaded, cuda_graphs=cuda_graphs)
        mixed = [harness.add(prompt=PROMPTS[2], max_tokens=24, intervention=i) for i in interventions()]
        harness.run()
        receipts = [t.finished.receipt for t in mixed[1:]]
        assert all(r is not None and r.applied == r.expected > 0 for r in receipts)
        tokens.append([t.token_ids for t in mixed])
    assert tokens[0] == tokens[1]
    assert len({tuple(t) for t in tokens[0]}) == 5
    graphs = harness.engine.graphs
    assert graphs is None or "off" not in str(graphs)
    assert graphs is None or graphs.num_captured > 0


# int8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("in_features", [131, 192, 1024])
def test_int8_is_its_own_dequantised_weight(dtype, in_features):
    assert int8_problem(GPU, dtype) == ""
    torch.manual_seed(1)
    weight, bias = torch.randn(77, in_features).to(GPU, dtype), torch.randn(77).to(GPU, dtype)
    for few_rows in {0, few_packed_rows(GPU, dtype)}:
        linear = GpuInt8Linear(weight, bias, few_rows)
        for rows in (1, 2, 7, 100):
            x = torch.randn(rows, in_features).to(GPU, dtype)
            expected = functional.linear(x.double(), linear.dequantised().double(), bias.double())
            worst = (linear(x).double() - expected).abs().max()
            assert worst <= (1e-3 if dtype is torch.float32 else 2e-2) * expected.abs().max()


def test_an_int8_model_is_the_plain_one_with_rounded_weights(folders, architecture):
    from transformers import AutoModelForCausalLM

    path, prompt = folders[architecture], PROMPTS[3]
    theirs: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").to(GPU)
    for linear in (m for m in theirs.modules() if type(m) is torch.nn.Linear):
        rounded, scales = quantise(linear.weight.detach())
        linear.weight.data = rounded * scales.unsqueeze(1)
    loaded = load_model(ModelSpec("tiny", path, dtype="float32", device="cuda", weights="int8"))
    expected = theirs.generate(
        torch.tensor([prompt], device=GPU), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    got = EngineHarness(loaded).generate(prompt=prompt, max_tokens=12)
    assert got.token_ids == expected[0, len(prompt) :].tolist()


# Waiting


@pytest.mark.parametrize("cuda_graphs", ["auto", "off"])
def test_a_decode_step_makes_one_copy_to_the_host(rough, cuda_graphs):
    harness = EngineHarness(rough, cuda_graphs=cuda_graphs)
    for prompt in PROMPTS[1:4]:
        harness.add(prompt=prompt, max_tokens=60)
    for _ in range(8):
        harness.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        harness.step()
    copies = [event for event in profile.events() if "Memcpy DtoH" in event.name]
    assert len(copies) == 1
