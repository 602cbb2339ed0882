"""Scores of given continuations, and exact divergences of pairs, against transformers' own forward pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.captures import CaptureSpec
from inference.engine.messages import DivergenceEvent, ScoresEvent, Scoring
from inference.engine.models.self_check import probe_layouts
from inference.engine.models.sites import decoder_layers
from inference.engine.output.comparisons import divergences
from inference.engine.scheduling.intake import RequestIntake
from inference.interventions import Intervention, Phase, Site, VectorEdit
from tests.builders import build_request
from tests.engine.harness import EngineHarness, Transcript

pytestmark = pytest.mark.slow

PROMPT = tuple(range(5, 25))
CONTINUATION = tuple(range(40, 71, 2))
LAYER = 1
CONFIGS: dict[str, dict[str, Any]] = {
    "contiguous": {"kv_cache_backend": "contiguous"},
    "paged": {"kv_cache_backend": "paged"},
    "small chunks": {"max_prefill_tokens": 7},
    "single tokens": {"max_prefill_tokens": 1},
    "no prefix cache": {"prefix_cache": False},
    "speculation": {"speculative_method": "prompt_lookup", "prompt_lookup_min": 1, "min_speculative_gain": 0.0},
}


def vector(scale: float) -> torch.Tensor:
    return scale * torch.randn(32, generator=torch.Generator().manual_seed(3))


def steering(scale: float = 2.0, phase: Phase = "both") -> Intervention:
    return Intervention(f"add-{scale}-{phase}", (VectorEdit(Site(LAYER), vector(scale), phase=phase),))


def reference(loaded, scale: float = 0.0, phase: Phase = "both", prompt=PROMPT, continuation=CONTINUATION):
    """``[len(continuation), vocab]`` float64 log-probabilities by transformers alone, with a plain hook of the test."""
    acts = torch.zeros(len(prompt) + len(continuation), 1)
    acts[: len(prompt)] = float(phase in ("both", "prompt"))
    acts[len(prompt) :] = float(phase in ("both", "generation"))

    def hook(module, inputs, output):
        hidden = output[0] if isinstance(output, tuple) else output
        steered = hidden + acts * vector(scale)
        return (steered, *output[1:]) if isinstance(output, tuple) else steered

    module = loaded.module
    ours = module.config._attn_implementation
    handle = decoder_layers(module)[LAYER].register_forward_hook(hook)
    module.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            logits = module(input_ids=torch.tensor([[*prompt, *continuation]]), use_cache=False).logits[0]
    finally:
        handle.remove()
        module.set_attn_implementation(ours)
    return logits[len(prompt) - 1 : -1].double().log_softmax(-1)


def kl(p: torch.Tensor, q: torch.Tensor) -> np.ndarray:
    return (p.exp() * (p - q)).sum(-1).numpy()


class PairHarness(EngineHarness):
    def add_pair(self, ours: Intervention | None, theirs: Intervention | None = None, **fields: Any) -> Transcript:
        """Both under one sink, as a submission has it."""
        sink, self._next_sink = self._next_sink, self._next_sink + 1
        transcript = self.transcripts[sink] = Transcript()
        for index, intervention in enumerate((ours, theirs)):
            scoring = Scoring(fields.get("continuation", CONTINUATION), "pair", is_reference=index == 1)
            prompt = fields.get("prompt", PROMPT)
            if index == 1:
                prompt = fields.get("reference_prompt", prompt)
            request = build_request(prompt, intervention=intervention, index=index, scoring=scoring, max_tokens=0)
            self._note(self.engine.add(request, sink, 0.0))
        return transcript

    def compare(self, ours: Intervention | None, theirs: Intervention | None = None, **fields: Any) -> Transcript:
        transcript = self.add_pair(ours, theirs, **fields)
        self.run()
        return transcript


def scores(transcript: Transcript, index: int = 0) -> list[float]:
    (event,) = [e for e in transcript.events if isinstance(e, ScoresEvent) and e.index == index]
    return list(event.logprobs)


def divergence(transcript: Transcript) -> list[float]:
    (event,) = [e for e in transcript.events if isinstance(e, DivergenceEvent)]
    return list(event.kl)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_divergence_is_that_of_the_full_distributions(loaded, config):
    got = PairHarness(loaded, **config).compare(steering())
    ours, theirs = reference(loaded, 2.0), reference(loaded)

    assert np.allclose(divergence(got), kl(ours, theirs), rtol=1e-3, atol=1e-5)
    places = torch.arange(len(CONTINUATION)), torch.tensor(CONTINUATION)
    assert np.allclose(scores(got, 0), ours[places], atol=1e-4)
    assert np.allclose(scores(got, 1), theirs[places], atol=1e-4)
    assert min(divergence(got)) > 0.01, "the test's steering does something"


@pytest.mark.parametrize("phase", ["prompt", "generation", "both"])
def test_the_continuation_counts_as_generated(llama, phase):
    got = PairHarness(llama).compare(steering(phase=phase))

    assert np.allclose(divergence(got), kl(reference(llama, 2.0, phase), reference(llama)), rtol=1e-3, atol=1e-5)
    receipt = got.events[-1].receipt or next(e.receipt for e in got.events if getattr(e, "receipt", None))
    tokens = {"prompt": len(PROMPT), "generation": len(CONTINUATION), "both": len(PROMPT) + len(CONTINUATION)}[phase]
    assert receipt.applied == receipt.expected
    assert receipt.expected <= tokens


def test_two_interventions_are_compared_in_the_order_asked_for(llama):
    got = PairHarness(llama).compare(steering(2.0), steering(-1.0))
    back = PairHarness(llama).compare(steering(-1.0), steering(2.0))

    ours, theirs = reference(llama, 2.0), reference(llama, -1.0)
    assert np.allclose(divergence(got), kl(ours, theirs), rtol=1e-3, atol=1e-5)
    assert np.allclose(divergence(back), kl(theirs, ours), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("chunk", [7, 512])
def test_one_continuation_is_compared_behind_two_prompts(llama, chunk):
    other = (*range(90, 101), *PROMPT)
    got = PairHarness(llama, max_prefill_tokens=chunk).compare(steering(), reference_prompt=other)

    expected = kl(reference(llama, 2.0), reference(llama, prompt=other))
    assert np.allclose(divergence(got), expected, rtol=1e-3, atol=1e-5)


def test_the_same_twice_diverges_nowhere(llama):
    assert divergence(PairHarness(llama).compare(steering(), steering())) == [0.0] * len(CONTINUATION)
    assert divergence(PairHarness(llama).compare(None)) == [0.0] * len(CONTINUATION)


def test_scores_are_the_logprobs_of_what_was_generated(loaded):
    """Greedy tokens, scored as a continuation: the same log-probabilities as while they were chosen."""
    harness = EngineHarness(loaded)
    made = harness.generate(prompt=PROMPT, intervention=steering(), logprobs=0, max_tokens=12)
    scored = harness.generate(
        prompt=PROMPT, intervention=steering(), scoring=Scoring(tuple(made.token_ids)), max_tokens=0
    )

    assert np.allclose(scores(scored), [p.logprob for p in made.logprobs], atol=1e-4)
    assert scored.token_ids == []
    assert (scored.finished.reason, scored.finished.usage.completion_tokens) == ("length", 12)


def test_a_pair_beside_traffic_gets_the_same(llama):
    alone = divergence(PairHarness(llama).compare(steering()))
    harness = PairHarness(llama, max_batch_size=4)
    others = [harness.add(prompt=tuple(range(7 + n, 30 + n)), max_tokens=20) for n in range(3)]
    harness.step()
    pairs = [harness.add_pair(steering()) for _ in range(3)]
    harness.run()

    assert all(np.allclose(divergence(pair), alone, atol=1e-5) for pair in pairs)
    assert all(other.finished.usage.completion_tokens == 20 for other in others)


@pytest.mark.parametrize("backend", ["contiguous", "paged"])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_pair_that_gives_way_half_scored_gets_the_same(llama, backend, prefix_cache):
    """Memory runs short as streams grow: each side is recomputed, and no position is scored or compared twice."""
    prompt, continuation = tuple(range(3, 23)), tuple(50 + (7 * n) % 300 for n in range(80))
    harness = PairHarness(
        llama,
        kv_cache_backend=backend,
        kv_cache_bytes=256 * sum(layout.bytes_per_token for layout in probe_layouts(llama.module)),
        max_seq_len=160,
        prefix_cache=prefix_cache,
        max_prefill_tokens=2,
        max_stall_factor=0.0,
    )
    streams = [harness.add(prompt=(60 + n, 61), max_tokens=150) for n in range(2)]
    for _ in range(30):
        harness.step()
    pairs = [harness.add_pair(steering(), prompt=prompt, continuation=continuation) for _ in range(2)]
    gave_way_at: set[int] = set()
    while harness.engine.has_work:
        before = {s: (s.num_preemptions, len(s.scoring.logprobs)) for s in scoring_sequences(harness)}
        harness.step()
        gave_way_at |= {before[s][1] for s in scoring_sequences(harness) if s.num_preemptions > before[s][0]}

    assert gave_way_at & set(range(1, len(continuation))), "one gave way in the midst of its continuation"
    ours, theirs = (reference(llama, scale, "both", prompt, continuation) for scale in (2.0, 0.0))
    for pair in pairs:
        assert np.allclose(divergence(pair), kl(ours, theirs), rtol=1e-3, atol=1e-5)
        receipt = next(event.receipt for event in pair.events if getattr(event, "receipt", None))
        assert receipt.applied == receipt.expected > 0
    assert all(stream.finished.usage.completion_tokens == 150 for stream in streams)


def scoring_sequences(harness: PairHarness) -> list[Any]:
    return [s for s in harness.engine._scheduler.sequences() if s.scoring is not None]


def test_a_shared_prompt_is_taken_from_the_cache(llama):
    harness = PairHarness(llama)
    harness.generate(prompt=PROMPT * 3)
    got = harness.compare(steering(phase="generation"), prompt=PROMPT * 3)

    cached = [event.usage.cached_tokens for event in got.events if hasattr(event, "usage")]
    assert min(cached) >= len(PROMPT)
    expected = kl(reference(llama, 2.0, "generation", PROMPT * 3), reference(llama, prompt=PROMPT * 3))
    assert np.allclose(divergence(got), expected, rtol=1e-3, atol=1e-5)


def test_reads_go_along(llama):
    """What the unsteered model makes of a given text, in the pass that scores it."""
    captures = (CaptureSpec(site=Site(LAYER), phase="generation", pooling="mean"),)
    got = EngineHarness(llama).generate(prompt=PROMPT, scoring=Scoring(CONTINUATION), captures=captures, max_tokens=0)
    reading = next(event.captures[0] for event in got.events if hasattr(event, "captures"))
    assert reading.num_tokens == len(CONTINUATION)
    assert got.finished.reason == "length"


def test_one_side_that_fails_leaves_nothing_behind(llama):
    harness = PairHarness(llama)
    pair = harness.add_pair(Intervention("nowhere", (VectorEdit(Site(99), vector(1.0)),)))
    harness.run()  # checks integrity at each step

    codes = [getattr(event, "code", "") for event in pair.events]
    assert "sae_mismatch" in codes
    assert not [event for event in pair.events if isinstance(event, DivergenceEvent)]


def test_a_cancelled_pair_leaves_nothing_behind(llama):
    harness = PairHarness(llama, max_prefill_tokens=7)
    pair = harness.add_pair(steering())
    for _ in range(4):
        harness.step()
    harness.cancel(pair)
    harness.engine.check_integrity()
    assert not harness.engine.has_work


def test_steering_out_of_range_fails_readably(llama):
    overflow = tuple(VectorEdit(Site(layer), torch.full((32,), 3e38)) for layer in (1, 2))  # each alone is finite
    got = PairHarness(llama).compare(Intervention("overflow", overflow))
    failed = [event for event in got.events if getattr(event, "code", "") == "steering_unstable"]
    assert [event.index for event in failed] == [0]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"scoring": Scoring(()), "max_tokens": 0}, "invalid_scoring"),
        ({"scoring": Scoring((5,)), "max_tokens": 1}, "invalid_scoring"),
        ({"scoring": Scoring((-1,)), "max_tokens": 0}, "invalid_scoring"),
        ({"scoring": Scoring((10**6,)), "max_tokens": 0}, "invalid_scoring"),
        ({"scoring": Scoring((5,) * 300), "max_tokens": 0}, "context_length_exceeded"),
    ],
)
def test_what_cannot_be_scored_is_refused(llama, fields, code):
    assert EngineHarness(llama).generate(prompt=PROMPT, **fields).failed.code == code


def test_a_comparison_too_large_to_keep_is_refused(llama):
    intake = RequestIntake(llama, 256, None, max_compared_bytes=4 * llama.vocab_size * 3)

    def problem(num_tokens: int, pair: str = "pair"):
        scoring = Scoring(CONTINUATION[:num_tokens], pair)
        return intake.validate(build_request(PROMPT, scoring=scoring, max_tokens=0))

    assert problem(4) == (
        "scoring_too_large",
        "The continuation has 4 tokens; this model can compare at most 3 at once.",
    )
    assert problem(3) is None
    assert problem(4, pair="") is None  # nothing is kept of it


@settings(max_examples=60)
@given(rows=st.integers(1, 40), vocab=st.integers(2, 50), seed=st.integers(0, 10**6), scale=st.floats(0.01, 30))
def test_divergences_are_never_negative_and_zero_for_equals(rows, vocab, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    p, q = ((scale * torch.randn(rows, vocab, generator=generator)).log_softmax(-1) for _ in range(2))
    found = divergences(p, q)
    assert len(found) == rows
    assert all(value > -1e-5 for value in found)
    assert divergences(p, p) == [0.0] * rows
    assert np.allclose(found, kl(p.double(), q.double()), atol=1e-5)


def test_tokens_without_probability_count_nothing():
    p = torch.tensor([[0.5, 0.5, 0.0]]).log()
    assert divergences(p, torch.tensor([[0.25, 0.25, 0.5]]).log()) == pytest.approx([math.log(2)])
    assert divergences(p, torch.tensor([[1.0, 0.0, 0.0]]).log()) == [math.inf]


@pytest.mark.parametrize("is_reference", [False, True], ids=["one subject", "one reference"])
@pytest.mark.parametrize("max_batch_size", [2, 8])
def test_one_sequence_is_compared_with_several(llama, is_reference, max_batch_size):
    """The unsteered side is computed once for all strengths, also while some of them still wait."""
    harness = PairHarness(llama, max_batch_size=max_batch_size, max_prefill_tokens=24)
    scales = (2.0, -1.0, 0.5)
    sink, harness._next_sink = harness._next_sink, harness._next_sink + 1
    transcript = harness.transcripts[sink] = Transcript()
    for index, intervention in enumerate((None, *map(steering, scales))):
        mine = (index == 0) == is_reference
        scoring = Scoring(CONTINUATION, "pair", mine, num_partners=1 if index else len(scales))
        request = build_request(PROMPT, intervention=intervention, index=index, scoring=scoring, max_tokens=0)
        harness._note(harness.engine.add(request, sink, 0.0))
    harness.run()

    base = reference(llama)
    found = {event.index: event.kl for event in transcript.events if isinstance(event, DivergenceEvent)}
    assert sorted(found) == [1, 2, 3]
    for index, scale in enumerate(scales, 1):
        steered = reference(llama, scale)
        expected = kl(steered, base) if is_reference else kl(base, steered)
        assert np.allclose(found[index], expected, rtol=1e-3, atol=1e-5)
    assert not len(harness.engine._comparisons)
