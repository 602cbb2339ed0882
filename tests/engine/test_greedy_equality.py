"""Greedy output equals transformers' generate, however requests are run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from inference.engine import native
from inference.engine.cache_plan import probe_layouts
from inference.engine.linear_kinds import quantise
from inference.engine.loader import LoadedModel, ModelSpec, load_model
from tests.builders import ARCHITECTURES, build_model
from tests.engine.harness import EngineHarness, Transcript, reference_tokens

PROMPTS = [tuple(range(3 + 7 * i, 3 + 7 * i + length)) for i, length in enumerate((1, 4, 19, 33))]
NUM_TOKENS = 24


@pytest.fixture(params=["contiguous", "paged"])
def backend(request) -> str:
    return request.param


@pytest.fixture(params=["continuous", "static"])
def mode(request) -> str:
    return request.param


@pytest.fixture
def torch_kernels():
    native.deactivate()
    yield
    native.activate()


@pytest.fixture
def make(loaded, backend) -> Callable[..., EngineHarness]:
    return partial(EngineHarness, loaded, kv_cache_backend=backend)


def check(loaded: Any, got: dict[tuple[int, ...], Transcript], num_tokens: int = NUM_TOKENS) -> None:
    for prompt, transcript in got.items():
        assert transcript.token_ids == reference_tokens(loaded, prompt, num_tokens)


def test_alone(loaded, make):
    for prompt in PROMPTS:
        check(loaded, {prompt: make().generate(prompt=prompt, max_tokens=NUM_TOKENS)})


@pytest.mark.usefixtures("torch_kernels")
def test_without_native_kernels(loaded, make):
    harness = make(max_prefill_tokens=7)
    got = {prompt: harness.add(prompt=prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS}
    harness.run()
    check(loaded, got)


@pytest.fixture(scope="session", params=ARCHITECTURES)
def int8(request, tmp_path_factory) -> tuple[LoadedModel, Any]:
    """A model with int8 weights, and transformers' own with what those weights stand for."""
    path = build_model(tmp_path_factory.mktemp("int8") / request.param, request.param)
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for linear in [module for module in plain.modules() if isinstance(module, torch.nn.Linear)]:
            rounded, scales = quantise(linear.weight)
            linear.weight.copy_(rounded * scales.unsqueeze(1))
    spec = ModelSpec("tiny", path, dtype="float32", device="cpu", weights="int8")
    return load_model(spec), SimpleNamespace(module=plain)


@pytest.mark.parametrize("has_kernels", [True, False])
def test_int8_against_its_own_dequantised_weights(int8, backend, mode, has_kernels):
    loaded, reference = int8
    if not has_kernels:
        native.deactivate()
    try:
        harness = EngineHarness(loaded, kv_cache_backend=backend, batching_mode=mode, max_prefill_tokens=7)
        got = {prompt: harness.add(prompt=prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS}
        harness.run()
    finally:
        native.activate()
    check(reference, got)


@pytest.mark.parametrize("max_prefill_tokens", [1, 3, 7, 256])
def test_batched_and_chunked(loaded, make, mode, max_prefill_tokens):
    harness = make(max_prefill_tokens=max_prefill_tokens, batching_mode=mode)
    got = {prompt: harness.add(prompt=prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS}
    harness.run()
    check(loaded, got)


def test_after_neighbours_leave_and_slots_are_reused(loaded, make):
    harness = make(max_batch_size=2, max_prefill_tokens=5)
    short = harness.add(prompt=PROMPTS[2], max_tokens=2)
    cancelled = harness.add(prompt=PROMPTS[3], max_tokens=200)
    late = {prompt: harness.add(prompt=prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS}
    for _ in range(12):
        harness.step()
    harness.cancel(cancelled)
    harness.run()
    check(loaded, {PROMPTS[2]: short}, 2)
    assert cancelled.finished.reason == "cancelled"
    check(loaded, late)


def test_longer_than_the_sliding_window_and_a_block(loaded, make):
    prompt = tuple(3 + i % 390 for i in range(140))
    check(loaded, {prompt: make(max_prefill_tokens=32).generate(prompt=prompt, max_tokens=60)}, 60)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted(loaded, backend, mode, prefix_cache):
    """The cache holds one and a half of the four, so the later ones give way and are computed anew."""
    prompts = [tuple(3 + (5 * i + j) % 390 for j in range(40)) for i in range(4)]
    token_bytes = sum(layout.bytes_per_token for layout in probe_layouts(loaded))
    harness = EngineHarness(
        loaded,
        kv_cache_backend=backend,
        batching_mode=mode,
        kv_cache_bytes=160 * token_bytes,
        max_seq_len=128,
        prefix_cache=prefix_cache,
        max_stall_factor=0.0,
    )
    got = {prompt: harness.add(prompt=prompt, max_tokens=60) for prompt in prompts}
    harness.run()
    assert harness.engine.num_preemptions > 0
    check(loaded, got, 60)


def test_prefix_cached(loaded, make):
    """Of ended sequences, of running ones, and of an earlier turn with its answer."""
    shared = tuple(3 + i % 390 for i in range(100))
    harness = make()
    first = harness.generate(prompt=(*shared, 7), max_tokens=40)
    assert first.finished.usage.cached_tokens == 0
    running = harness.add(prompt=(*shared, 8), max_tokens=NUM_TOKENS)
    harness.step()
    copied = harness.add(prompt=(*shared, 9), max_tokens=NUM_TOKENS)
    next_turn = (*shared, 7, *first.token_ids, 11, 12)
    again = harness.add(prompt=next_turn, max_tokens=NUM_TOKENS)
    harness.run()
    check(loaded, {(*shared, 8): running, (*shared, 9): copied, next_turn: again})
    assert running.finished.usage.cached_tokens == copied.finished.usage.cached_tokens == 96
    assert again.finished.usage.cached_tokens == 128, "an answer is a known prefix too"


def test_equal_prompts_that_come_together_are_computed_once(loaded, make):
    prompt = tuple(3 + i % 390 for i in range(100))
    harness = make()
    got = [harness.add(prompt=prompt, max_tokens=NUM_TOKENS) for _ in range(3)]
    harness.run()
    for transcript in got:
        check(loaded, {prompt: transcript})
    assert [t.finished.usage.cached_tokens for t in got] == [0, 96, 96]
