"""Compare the Triton kernels with plain torch, under Triton's interpreter; see test_gpu_kernels.py."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from inference.engine.kernels.accelerator import Accelerator, attention_of
from inference.engine.kernels.gpu import steering as steering_kernel
from inference.engine.kernels.gpu.attention import paged_attention
from inference.engine.kernels.gpu.fusion import GpuAttention, GpuLayer
from inference.engine.kernels.gpu.layers import add_rms_norm, gate_mul, rms_norm, rotate_and_write
from inference.engine.kernels.gpu.sampling import CHUNK, choose_tokens, works_on
from inference.engine.kernels.native import fallback
from inference.engine.kernels.native.steering_tensors import NORMALIZATIONS
from inference.engine.kernels.step_graphs import Capture
from inference.engine.kernels.varlen_attention import torch_attention
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from inference.engine.sampling.sampler import peaks, sample
from tests.builders import ARCHITECTURES, build_model
from tests.engine.harness import EngineHarness, reference_tokens
from tests.engine.sampling import sequence
from tests.engine.test_accelerator import again
from tests.engine.test_native_steering import DTYPES as DTYPES_OF_STEERING
from tests.engine.test_native_steering import build_case as build_steering
from tests.engine.test_native_steering import formula
from tests.engine.test_varlen_attention import build_case

DTYPES = ((torch.float32, 1e-5), (torch.bfloat16, 2e-2))
EPS = 1e-6


def attention() -> None:
    choose = random.Random(0)  # noqa: S311 - not for secrets
    for seed in range(40):
        is_single = choose.random() < 0.5
        sizes = [(choose.randint(1, 9), choose.randint(0, 150)) for _ in range(choose.randint(1, 4))]
        queries = tuple(1 if is_single else count for count, _ in sizes)
        case = {
            "queries": queries,
            "lengths": [count + seen for count, (_, seen) in zip(queries, sizes, strict=True)],
            "kv_heads": choose.randint(1, 3),
            "group": choose.choice([1, 2, 3]),
            "page": choose.choice([0, 8, 32]),
            "window": choose.choice([0, 0, 1, 7, 1000]),
            "softcap": choose.choice([0.0, 0.0, 5.0]),
            "sink": choose.choice([None, float("-inf"), 0.0, 30.0]),
            "slack": choose.choice([0, 5]),
            "seed": seed,
        }
        step = build_case(case)
        assert torch.allclose(paged_attention(*step), torch_attention(*step), atol=1e-5), case


def layers() -> None:
    for dtype, tolerance in DTYPES:
        x, residual, weight = (torch.randn(*shape).to(dtype) for shape in ((5, 80), (5, 80), (80,)))
        for offset in (0.0, 1.0):
            same(rms_norm(x, weight, EPS, offset), normed(x, weight, offset), tolerance)
            total, out = add_rms_norm(x, residual, weight, EPS, offset)
            same(total, x + residual, tolerance)
            same(out, normed(x + residual, weight, offset), tolerance)
        gate_up = torch.randn(5, 2600).to(dtype)
        gate, up = gate_up.chunk(2, -1)
        same(gate_mul(gate_up, "silu"), functional.silu(gate) * up, tolerance)
        same(gate_mul(gate_up, "gelu_tanh"), functional.gelu(gate, approximate="tanh") * up, tolerance)
        for heads, kv_heads, size in ((4, 2, 16), (6, 3, 20), (16, 8, 8)):
            for norm in (None, torch.randn(size).to(dtype)):
                for offset in (0.0, 1.0):
                    check_rotation(heads, kv_heads, size, norm, offset, 4 * tolerance)


def check_rotation(heads: int, kv_heads: int, size: int, norm: Tensor | None, offset: float, tolerance: float) -> None:
    dtype = torch.float32 if norm is None else norm.dtype
    qkv = torch.randn(5, (heads + 2 * kv_heads) * size).to(dtype)
    angles = torch.randn(5, size // 2).repeat(1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    keys = torch.zeros(4, kv_heads, 8, size, dtype=dtype).transpose(1, 2)  # as on the CPU: not contiguous
    values = keys.clone()
    slots = torch.randperm(32)[:5]
    queries = rotate_and_write(qkv, heads, (norm, norm, EPS, offset), cos, sin, keys, values, slots)
    widths = [heads * size, kv_heads * size, kv_heads * size]
    q, k, v = (part.view(5, -1, size) for part in qkv.split(widths, -1))
    if norm is not None:
        q, k = normed(q, norm, offset), normed(k, norm, offset)
    same(queries, rotated(q, cos, sin), tolerance)
    same(keys[slots // 8, slots % 8], rotated(k, cos, sin), tolerance)
    assert torch.equal(values[slots // 8, slots % 8], v)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, other = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-other, one], -1) * sin[:, None]


def normed(x: Tensor, weight: Tensor, offset: float) -> Tensor:
    scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)
    return (scaled * (1 + weight.float())).to(x.dtype) if offset else scaled.to(x.dtype) * weight


def same(got: Tensor, expected: Tensor, tolerance: float) -> None:
    assert torch.allclose(got.float(), expected.float(), atol=tolerance, rtol=tolerance)


def steering() -> None:
    """Any rows, entries, gates and normalizations give the same as plain torch."""
    assert steering_kernel.works_on(torch.device("cpu"))
    choose = random.Random(5)  # noqa: S311 - not for secrets
    for seed in range(150):
        case = {
            "dtype": choose.choice(sorted(DTYPES_OF_STEERING)),
            "width": choose.choice([2, 7, 64, 200]),
            "tokens": choose.randint(1, 9),
            "rows": choose.randint(1, 5),
            "normalizations": choose.sample(NORMALIZATIONS, choose.randint(1, 3)),
            "has_given": choose.random() < 0.5,
            "seed": seed,
        }
        hidden, rows, tables, given = build_steering(case)
        if formula(hidden, rows, tables, given) is None:  # a gate is open or closed by rounding
            continue
        out, changes = steering_kernel.steer(hidden, rows, tables, given)
        expected, expected_changes = fallback.steer(hidden, rows, tables, given)
        tolerance = DTYPES_OF_STEERING[str(case["dtype"])] * (1 + float(expected.float().norm(dim=-1).max()))
        same(out, expected, tolerance)
        same(changes, expected_changes, tolerance)
        unmoved = (tables.flags[rows] & 1) == 0
        assert torch.equal(out[unmoved], hidden[unmoved])


def sampling() -> None:
    """The likeliest tokens are torch's; drawn ones are those of inversion in float64."""
    assert works_on(torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    for vocab in (7, 100, 513, CHUNK, CHUNK + 1, 3 * CHUNK - 5):
        logits = 3 * torch.randn(6, vocab, generator=generator)
        logits[1, vocab // 2 :] = logits[1].max()  # ties: the first one
        logits[2, : vocab // 2] = float("-inf")
        logits[3, vocab - 1] = float("nan")
        logits[4] = float("-inf")
        for dtype in (torch.float32, torch.bfloat16):
            kept = logits.to(dtype)
            tokens, flags = choose_tokens(kept, None, None)
            best, expected = peaks(kept)
            assert tokens[:4].tolist() == expected[:4].tolist()
            assert flags[:, 1].tolist() == torch.isfinite(best).int().tolist()
            assert flags[:, 0].tolist() == tokens.tolist()
        for _ in range(5):
            uniforms = torch.rand(6, dtype=torch.float64, generator=generator)
            temperatures = torch.tensor([0.7, 1.5, 1.0, 1.0, 1.0, 0.0])
            tokens, _ = choose_tokens(logits, temperatures, uniforms)
            for row in range(3):
                ends = (logits[row].double() / temperatures[row].double()).softmax(-1).cumsum(-1)
                assert tokens[row] == int(torch.searchsorted(ends, uniforms[row], right=True)), (vocab, row)
            assert tokens[5] == logits[5].argmax()
    limited_sampling(generator)


def limited_sampling(generator: torch.Generator) -> None:
    """Truncated draws are those of the ordinary sampler, in every dtype, also with ties and flat distributions."""
    several = {"top_k": 40, "top_p": 0.5, "min_p": 0.01}
    kinds: list[dict[str, Any]] = [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, several, {"top_p": 0.01}, {}]
    scales = torch.tensor([[0.1], [1], [1], [3], [1], [1]])
    for vocab in (50, CHUNK + 300):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            logits = torch.randn(len(kinds), vocab, generator=generator) * scales
            logits[1, 3:9] = logits[1].max()
            logits = logits.to(dtype)
            drawn = []
            for device_can in (False, True):
                sequences = [sequence(seed=i, temperature=0.7, **kind) for i, kind in enumerate(kinds)]
                with patch("inference.engine.sampling.sampler._can_choose_on", lambda _, can=device_can: can):
                    drawn.append([sample(logits, sequences).token_ids for _ in range(3)])
            assert drawn[0] == drawn[1], (vocab, dtype)


def engine(folder: Path) -> None:
    prompts = [tuple(range(3 + 7 * i, 3 + 7 * i + length)) for i, length in enumerate((1, 40))]
    for name in ARCHITECTURES:
        loaded = load_model(ModelSpec("tiny", build_model(folder / name, name), dtype="float32", device="cpu"))
        assert any(isinstance(module.forward, GpuLayer) for module in loaded.module.modules())
        assert any(isinstance(module.forward, GpuAttention) for module in loaded.module.modules())
        harness = accelerated(loaded, None)
        got = {prompt: harness.add(prompt=prompt, max_tokens=5) for prompt in prompts}
        harness.run()
        for prompt, transcript in got.items():
            assert transcript.token_ids == reference_tokens(loaded, prompt, 5)


def graphs(folder: Path) -> None:
    """Prompts of different lengths in one graph, which is captured for the third of them, beside one that decodes."""
    loaded = load_model(ModelSpec("tiny", build_model(folder, "llama"), dtype="float32", device="cpu"))
    harness = accelerated(loaded, again)
    beside = harness.add(prompt=(9, 8, 7), max_tokens=8)
    for prompt in (tuple(range(3 + i, 3 + i + 20 + 3 * i)) for i in range(4)):
        transcript = harness.add(prompt=prompt, max_tokens=2)
        while not transcript.is_ended:
            harness.step()
        assert transcript.token_ids == reference_tokens(loaded, prompt, 2)
    harness.run()
    assert beside.token_ids == reference_tokens(loaded, (9, 8, 7), 8)
    assert harness.engine.graphs is not None
    assert harness.engine.graphs.num_with_prompts == 1


def accelerated(loaded: LoadedModel, capture: Capture | None) -> EngineHarness:
    return EngineHarness(
        loaded,
        max_prefill_tokens=32,
        max_batch_size=4,
        kv_cache_backend="paged",
        accelerate=lambda loaded, cache, config: Accelerator(attention_of(loaded, cache, config), capture),
    )


if __name__ == "__main__":
    part, folder = sys.argv[1:]
    if part in {"engine", "graphs"}:
        {"engine": engine, "graphs": graphs}[part](Path(folder))
    else:
        {"attention": attention, "layers": layers, "steering": steering, "sampling": sampling}[part]()
    sys.stdout.write("ok\n")
