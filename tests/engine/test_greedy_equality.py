"""Greedy output equals transformers' generate, however requests are run.

Alone, batched in chunks, preempted and prefix-cached, each over combinations of architecture, weights, cache, mode and
kernels; int8 weights against a model of transformers' with what they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from inference.engine.kernels import native
from inference.engine.kernels.linear_kinds import quantise
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from inference.engine.models.self_check import probe_layouts
from tests.builders import ARCHITECTURES, build_model
from tests.combinations import pairwise
from tests.engine.harness import EngineHarness, Transcript, reference_tokens

pytestmark = pytest.mark.slow

PROMPTS = [tuple(range(3 + 7 * i, 3 + 7 * i + length)) for i, length in enumerate((1, 4, 19, 33))]
NUM_TOKENS = 24
Make = Callable[..., EngineHarness]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and transformers' own with the same weights."""

    loaded: LoadedModel
    reference: torch.nn.Module

    def check(self, got: dict[tuple[int, ...], Transcript], num_tokens: int = NUM_TOKENS) -> None:
        for prompt, transcript in got.items():
            assert transcript.token_ids == expected(self.reference, prompt, num_tokens)


@cache
def expected(reference: torch.nn.Module, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    return reference_tokens(SimpleNamespace(module=reference), prompt, num_tokens)


AXES: dict[str, list[str]] = {
    "architecture": list(ARCHITECTURES),
    "weights": ["float32", "int8"],
    "backend": ["contiguous", "paged"],
    "mode": ["continuous", "static"],
    "kernels": ["native", "torch"],
}


@pytest.fixture(params=pairwise(**AXES))
def combination(request) -> Iterator[dict[str, str]]:
    if request.param["kernels"] == "torch":
        native.deactivate()
    yield request.param
    native.activate()


# Weights and kernels make no difference to what these tests are about.
plainly = pytest.mark.parametrize(
    "combination", pairwise(**AXES | {"weights": ["float32"], "kernels": ["native"]}), indirect=True
)


@pytest.fixture(scope="session")
def int8_models(tmp_path_factory) -> dict[str, Subject]:
    return {name: int8_subject(tmp_path_factory.mktemp("int8"), name) for name in ARCHITECTURES}


def int8_subject(folder: Path, architecture: str) -> Subject:
    path = build_model(folder / architecture, architecture)
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for linear in [module for module in plain.modules() if isinstance(module, torch.nn.Linear)]:
            rounded, scales = quantise(linear.weight)
            linear.weight.copy_(rounded * scales.unsqueeze(1))
    return Subject(load_model(ModelSpec("tiny", path, dtype="float32", device="cpu", weights="int8")), plain)


@pytest.fixture
def subject(combination, loaded_models, int8_models) -> Subject:
    architecture = combination["architecture"]
    if combination["weights"] == "int8":
        return int8_models[architecture]
    return Subject(loaded_models[architecture], loaded_models[architecture].module)


@pytest.fixture
def make(subject, combination) -> Make:
    return partial(
        EngineHarness,
        subject.loaded,
        kv_cache_backend=combination["backend"],
        batching_mode=combination["mode"],
    )


def test_alone(subject, make):
    for prompt in PROMPTS:
        subject.check({prompt: make().generate(prompt=prompt, max_tokens=NUM_TOKENS)})


def test_batched_and_chunked(subject, make):
    run_together(subject, make(max_prefill_tokens=7))


@plainly
@pytest.mark.parametrize("max_prefill_tokens", [1, 3, 256])
def test_chunks_of_every_size(subject, make, max_prefill_tokens):
    run_together(subject, make(max_prefill_tokens=max_prefill_tokens))


def run_together(subject: Subject, harness: EngineHarness) -> None:
    got = {prompt: harness.add(prompt=prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS}
    harness.run()
    subject.check(got)


@plainly
def test_after_neighbours_leave_and_slots_are_reused(subject, make):
    harness = make(max_batch_size=2, max_prefill_tokens=5)
    short = harness.add(prompt=PROMPTS[2], max_tokens=2)
    cancelled = harness.add(prompt=PROMPTS[3], max_tokens=200)
    late = {prompt: harness.add(prompt=prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS}
    for _ in range(12):
        harness.step()
    harness.cancel(cancelled)
    harness.run()
    subject.check({PROMPTS[2]: short}, 2)
    assert cancelled.finished.reason == "cancelled"
    subject.check(late)


@plainly
def test_longer_than_the_sliding_window_and_a_block(subject, make):
    prompt = tuple(3 + i % 390 for i in range(140))
    subject.check({prompt: make(max_prefill_tokens=32).generate(prompt=prompt, max_tokens=60)}, 60)


def test_preempted(subject, make):
    run_short_of_memory(subject, make, prefix_cache=True)


@plainly
def test_preempted_without_a_prefix_cache(subject, make):
    run_short_of_memory(subject, make, prefix_cache=False)


def run_short_of_memory(subject: Subject, make: Make, *, prefix_cache: bool) -> None:
    """The cache holds one and a half of the four, so the later ones are preempted and recomputed."""
    prompts = [tuple(3 + (5 * i + j) % 390 for j in range(40)) for i in range(4)]
    token_bytes = sum(layout.bytes_per_token for layout in probe_layouts(subject.loaded.module))
    harness = make(kv_cache_bytes=160 * token_bytes, max_seq_len=128, prefix_cache=prefix_cache, max_stall_factor=0.0)
    got = {prompt: harness.add(prompt=prompt, max_tokens=60) for prompt in prompts}
    harness.run()
    assert harness.engine.num_preemptions > 0
    subject.check(got, 60)


def test_prefix_cached(subject, make):
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
    subject.check({(*shared, 8): running, (*shared, 9): copied, next_turn: again})
    assert running.finished.usage.cached_tokens == copied.finished.usage.cached_tokens == 96
    assert again.finished.usage.cached_tokens == 128, "an answer is a known prefix too"


@plainly
def test_equal_prompts_that_come_together_are_computed_once(subject, make):
    prompt = tuple(3 + i % 390 for i in range(100))
    harness = make()
    got = [harness.add(prompt=prompt, max_tokens=NUM_TOKENS) for _ in range(3)]
    harness.run()
    for transcript in got:
        subject.check({prompt: transcript})
    assert [t.finished.usage.cached_tokens for t in got] == [0, 96, 96]
