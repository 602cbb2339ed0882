"""The way of an accelerator, on the CPU: whole steps in static buffers, greedy tokens those of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from inference.engine.cache.memory_ahead import MemoryAhead
from inference.engine.config import EngineConfig
from inference.engine.kernels.accelerator import Accelerate, Accelerator, accelerate
from inference.engine.kernels.varlen_attention import (
    Kernel,
    VarlenAttention,
    flash_attention,
    flash_attention_of_copies,
)
from inference.engine.models.loader import LoadedModel
from inference.engine.models.self_check import probe_layouts
from inference.engine.steering.table import SteeringTable
from inference.interventions import Edit, FeatureRule, Intervention, NormEdit, ReaderEdit, Site, VectorEdit
from tests.builders import ARCHITECTURES
from tests.combinations import pairwise
from tests.engine.flash import flash_on_cpu
from tests.engine.harness import EngineHarness, reference_tokens
from tests.engine.test_steering import reader, vector
from tests.engine.test_steering_tables import AskedReader

pytestmark = pytest.mark.slow

PROMPTS = [tuple(range(3 + 7 * i, 3 + 7 * i + length)) for i, length in enumerate((1, 4, 19, 33))]
NUM_TOKENS = 24


def again(act: Callable[[], None]) -> Callable[[], object]:
    """In the place of a captured graph."""
    act()
    return act


def accelerated(flash: Kernel | None = None, *, has_graphs: bool = True) -> Accelerate:
    attention = VarlenAttention(flash, "on the CPU")
    return lambda *_: Accelerator(attention, again if has_graphs else None)


@pytest.fixture
def flash():
    with flash_on_cpu(dtypes=(torch.float32,), page_multiple=32) as calls:
        yield calls


def generate(loaded: LoadedModel, way: Accelerate, num_tokens: int = NUM_TOKENS, **config: Any) -> EngineHarness:
    harness = EngineHarness(loaded, accelerate=way, max_prefill_tokens=7, **config)
    got = {prompt: harness.add(prompt=prompt, max_tokens=num_tokens) for prompt in PROMPTS}
    harness.run()
    for prompt, transcript in got.items():
        assert transcript.token_ids == reference_tokens(loaded, prompt, num_tokens)
    return harness


@pytest.mark.parametrize("backend", ["paged", "contiguous"])
@pytest.mark.parametrize("has_graphs", [True, False])
def test_plain_torch(loaded, backend, has_graphs):
    harness = generate(loaded, accelerated(has_graphs=has_graphs), kv_cache_backend=backend)
    assert bool(harness.engine.graphs) == has_graphs
    if harness.engine.graphs:
        assert harness.engine.graphs.num_captured > 1


@pytest.mark.parametrize(
    ("backend", "kernel"),
    [("paged", flash_attention), ("paged", flash_attention_of_copies), ("contiguous", flash_attention)],
)
def test_the_flash_kernel(loaded, backend, kernel, flash):
    generate(loaded, accelerated(kernel), kv_cache_backend=backend)
    assert {1, 7} <= set(flash), "chunks and single tokens both take it"


def test_beyond_a_window_and_several_blocks(loaded, flash):
    prompt = tuple(3 + i % 390 for i in range(140))
    harness = EngineHarness(
        loaded, accelerate=accelerated(flash_attention), kv_cache_backend="paged", max_prefill_tokens=32
    )
    assert harness.generate(prompt=prompt, max_tokens=60).token_ids == reference_tokens(loaded, prompt, 60)
    assert harness.engine.graphs.num_captured > 0


@pytest.mark.usefixtures("flash")
def test_preempted(loaded):
    prompts = [tuple(3 + (5 * i + j) % 390 for j in range(40)) for i in range(4)]
    token_bytes = sum(layout.bytes_per_token for layout in probe_layouts(loaded.module))
    harness = EngineHarness(
        loaded,
        accelerate=accelerated(flash_attention),
        kv_cache_backend="paged",
        kv_cache_bytes=160 * token_bytes,
        max_seq_len=128,
        max_stall_factor=0.0,
    )
    got = {prompt: harness.add(prompt=prompt, max_tokens=60) for prompt in prompts}
    harness.run()
    assert harness.engine.num_preemptions > 0
    for prompt, transcript in got.items():
        assert transcript.token_ids == reference_tokens(loaded, prompt, 60)


def profiles() -> list[Intervention | None]:
    sae, clamps = reader(), (FeatureRule(3, gain=0.0, offset=6.0), FeatureRule(6, lower=4.0))
    asked = AskedReader("asked", sae.w_enc, sae.w_dec, sae.bias)
    edits: list[tuple[Edit, ...]] = [
        (VectorEdit(Site(1), vector(32)),),
        (VectorEdit(Site(2, "mlp_out"), vector(32, 2), phase="generation"),),
        (ReaderEdit(Site(1), sae, clamps),),
        (ReaderEdit(Site(2), asked, clamps), NormEdit(Site(2))),
    ]
    return [None, *(Intervention(f"profile {i}", edit) for i, edit in enumerate(edits))]


@pytest.mark.parametrize("num_speculative_tokens", [0, 3])
def test_steered_requests_are_as_on_the_ordinary_way(llama, num_speculative_tokens):
    """Together, then one by one after each other, when some sites and SAEs are out of use again."""
    method = "prompt_lookup" if num_speculative_tokens else "none"
    config: dict[str, Any] = {"speculative_method": method, "num_speculative_tokens": num_speculative_tokens or 1}
    tokens = []
    for way in (accelerate, accelerated()):
        harness = EngineHarness(llama, accelerate=way, prompt_lookup_min=1, min_speculative_gain=0.0, **config)
        got = [harness.add(prompt=PROMPTS[2], max_tokens=NUM_TOKENS, intervention=p) for p in profiles()]
        harness.run()
        got += [harness.generate(prompt=PROMPTS[3], max_tokens=NUM_TOKENS, intervention=p) for p in profiles()]
        receipts = [t.finished.receipt for t in got if t.finished.receipt]
        assert len(receipts) == 8
        assert all(receipt.applied == receipt.expected > 0 for receipt in receipts)
        tokens.append([t.token_ids for t in got])
    assert tokens[0] == tokens[1]
    assert len({tuple(t) for t in tokens[0]}) == 10, "each profile changes something"
    assert harness.engine.graphs.num_captured > 1


def test_a_steered_step_that_cannot_be_captured_is_run_without(llama, caplog):
    """Its SAE does what the device refuses then; steps without it keep their graphs."""
    sae, is_capturing = reader(), []

    class Unruly(AskedReader):
        def activations(self, h, features):
            if is_capturing:
                raise RuntimeError("operation not permitted when stream is capturing")
            return super().activations(h, features)

    def capture(act: Callable[[], None]) -> Callable[[], object]:
        is_capturing.append(True)
        try:
            return again(act)
        finally:
            is_capturing.clear()

    edits = (ReaderEdit(Site(1), Unruly("asked", sae.w_enc, sae.w_dec, sae.bias), (FeatureRule(3, offset=6.0),)),)
    request: dict[str, Any] = {"prompt": PROMPTS[2], "max_tokens": NUM_TOKENS}
    way: Accelerate = lambda *_: Accelerator(VarlenAttention(None, "on the CPU"), capture)  # noqa: E731
    harness = EngineHarness(llama, accelerate=way)
    steered = harness.generate(**request, intervention=Intervention("unruly", edits))
    assert (
        steered.token_ids
        == EngineHarness(llama).generate(**request, intervention=Intervention("unruly", edits)).token_ids
    )
    assert steered.finished.receipt.applied == steered.finished.receipt.expected > 0
    assert "Steered steps run without CUDA graphs" in caplog.text
    assert harness.engine.graphs.num_captured == 0
    assert harness.generate(**request).token_ids == reference_tokens(llama, PROMPTS[2], NUM_TOKENS)
    assert harness.engine.graphs.num_captured == 1


CACHES = {
    "paged-torch": ("paged", None),
    "paged-flash": ("paged", flash_attention),
    "paged-copies": ("paged", flash_attention_of_copies),
    "contiguous-flash": ("contiguous", flash_attention),
}


@pytest.mark.usefixtures("flash")
@pytest.mark.parametrize(
    "combination", pairwise(architecture=ARCHITECTURES, cache=list(CACHES), has_graphs=[True, False])
)
def test_drafts_are_rows_of_their_own_and_see_each_other(loaded_models, combination):
    backend, kernel = CACHES[combination["cache"]]
    harness = generate(
        loaded_models[combination["architecture"]],
        accelerated(kernel, has_graphs=combination["has_graphs"]),
        num_tokens=120,
        kv_cache_backend=backend,
        speculative_method="prompt_lookup",
        prompt_lookup_min=1,
        min_speculative_gain=0.0,
    )
    stats = harness.engine.stats()
    assert stats.draft_tokens > stats.accepted_draft_tokens > 0


def test_a_step_with_drafts_is_captured_where_it_has_no_more_rows_than_a_batch(llama):
    def widest(max_batch_size: int) -> int:
        harness = EngineHarness(
            llama,
            accelerate=accelerated(),
            max_batch_size=max_batch_size,
            speculative_method="prompt_lookup",
            prompt_lookup_min=1,
            min_speculative_gain=0.0,
            num_speculative_tokens=7,
        )
        got = harness.generate(prompt=PROMPTS[2], max_tokens=90, allowed_token_ids=tuple(range(20, 26)))
        assert harness.engine.stats().accepted_draft_tokens > 20
        assert got.token_ids == plain
        assert harness.engine.graphs is not None
        return harness.engine.graphs.widest

    request = {"prompt": PROMPTS[2], "max_tokens": 90, "allowed_token_ids": tuple(range(20, 26))}
    plain = EngineHarness(llama).generate(**request).token_ids
    assert widest(1) <= 1
    assert widest(8) > 1


def test_a_step_with_prompt_logprobs_is_not_captured(llama):
    results = []
    for way in (accelerate, accelerated()):
        harness = EngineHarness(llama, accelerate=way, max_prefill_tokens=1)
        transcript = harness.generate(prompt=PROMPTS[2], max_tokens=8, prompt_logprobs=2, logprobs=2)
        results.append([p.logprob for e in transcript.events for p in getattr(e, "logprobs", ()) if p is not None])
    assert results[0] == pytest.approx(results[1], abs=1e-4)


def test_nothing_of_it_on_the_cpu(llama):
    assert EngineHarness(llama).engine.graphs is None


def test_what_runs_is_told(llama):
    assert EngineHarness(llama).engine.stats().kernels.startswith("CPU: ")
    told = EngineHarness(llama, accelerate=accelerated(flash_attention)).engine.stats().kernels
    assert told == "attention by flash: on the CPU; CUDA graphs 0 captured"


def test_the_switches_are_checked():
    for name in ("attention_kernel", "cuda_graphs"):
        with pytest.raises(ValueError, match=name):
            EngineConfig(**{name: "maybe"})


@pytest.mark.parametrize("backend", ["paged", "contiguous"])
def test_steps_start_before_their_tokens_are_known_and_say_the_same(loaded, backend):
    """One request ends, another is cancelled and a third arrives while steps are under way."""
    harness = EngineHarness(loaded, accelerate=accelerated(), kv_cache_backend=backend)
    short = harness.add(prompt=PROMPTS[2], max_tokens=9)
    long = harness.add(prompt=PROMPTS[1], max_tokens=60)
    cancelled = harness.add(prompt=PROMPTS[3], max_tokens=60)
    for _ in range(14):
        harness.step()
    harness.cancel(cancelled)
    late = harness.add(prompt=PROMPTS[0], max_tokens=20)
    harness.run()
    assert harness.engine.steps_ahead > 20
    for transcript, prompt, count in ((short, PROMPTS[2], 9), (long, PROMPTS[1], 60), (late, PROMPTS[0], 20)):
        assert transcript.token_ids == reference_tokens(loaded, prompt, count)
    assert cancelled.token_ids == reference_tokens(loaded, PROMPTS[3], 60)[: len(cancelled.token_ids)]


def test_steered_and_sampled_requests_are_the_same_with_and_without_steps_ahead(llama):
    transcripts = []
    for method in ("none", "prompt_lookup"):  # drafts turn steps ahead off
        harness = EngineHarness(llama, accelerate=accelerated(), speculative_method=method)
        sampled = {"temperature": 0.8, "top_p": 0.9, "seed": 7}
        mixed = [harness.add(prompt=PROMPTS[2], max_tokens=30, intervention=i, **sampled) for i in profiles()]
        harness.run()
        assert bool(harness.engine.steps_ahead) == (method == "none")
        receipts = [t.finished.receipt for t in mixed[1:]]
        assert all(r is not None and r.applied == r.expected > 0 for r in receipts)
        transcripts.append([t.token_ids for t in mixed])
    assert transcripts[0] == transcripts[1]


@pytest.fixture
def kept_hooks(monkeypatch):
    """On a GPU, hooks stay for the graphs that contain them."""
    monkeypatch.setattr(SteeringTable, "_unhook", lambda *_: None)
    monkeypatch.setattr(MemoryAhead, "allocate_some", lambda _: False)  # a GPU's memory is allocated at once


@pytest.mark.usefixtures("kept_hooks")
def test_steered_steps_are_captured_in_idle_time(llama):
    """They write to the spare block, so that kept prefixes stay right; what was not used before is captured, too."""
    attention = VarlenAttention(None, "on the CPU")
    harness = EngineHarness(llama, accelerate=lambda *_: Accelerator(attention, again, prepares=True), max_batch_size=9)
    profile = Intervention("profile", (VectorEdit(Site(1), vector(llama.hidden_size, seed=1)),))
    assert not harness.engine.use_idle_time(), "nothing was steered yet"
    first = harness.generate(prompt=PROMPTS[3], max_tokens=9, intervention=profile).token_ids
    captured = 0
    while harness.engine.use_idle_time():
        captured += 1
    assert captured == 4, "2, 4, 8 and 16 rows; one row was captured in traffic"
    assert harness.engine.graphs.num_captured == 10
    again_steered = [harness.add(prompt=PROMPTS[3], max_tokens=9, intervention=profile) for _ in range(5)]
    plain = harness.add(prompt=PROMPTS[3], max_tokens=9)
    harness.run()
    assert all(transcript.token_ids == first for transcript in again_steered)
    assert plain.token_ids == reference_tokens(llama, PROMPTS[3], 9)
    assert harness.engine.graphs.num_captured == 10
    assert not harness.engine.use_idle_time()


@pytest.mark.usefixtures("kept_hooks")
def test_steps_that_cannot_be_captured_in_idle_time_harm_nobody(llama, monkeypatch, caplog):
    attention = VarlenAttention(None, "on the CPU")
    harness = EngineHarness(llama, accelerate=lambda *_: Accelerator(attention, again, prepares=True), max_batch_size=2)
    profile = Intervention("profile", (VectorEdit(Site(1), vector(llama.hidden_size, seed=1)),))
    expected = harness.generate(prompt=PROMPTS[2], max_tokens=9, intervention=profile).token_ids
    monkeypatch.setattr(harness.engine.graphs, "prepare_next", Mock(side_effect=ValueError("no such kernel")))
    assert not harness.engine.use_idle_time()
    assert "no such kernel" in caplog.text
    assert not harness.engine.use_idle_time()
    assert harness.engine.graphs.prepare_next.call_count == 1
    assert harness.generate(prompt=PROMPTS[2], max_tokens=9, intervention=profile).token_ids == expected


def test_graphs_are_captured_when_the_model_is_attached(llama):
    attention = VarlenAttention(None, "on the CPU")
    harness = EngineHarness(llama, accelerate=lambda *_: Accelerator(attention, again, prepares=True), max_batch_size=9)
    assert harness.engine.graphs.num_captured == 5, "1, 2, 4, 8 and 16 rows"
    assert harness.generate(prompt=PROMPTS[2], max_tokens=9).token_ids == reference_tokens(llama, PROMPTS[2], 9)
