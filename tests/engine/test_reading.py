"""Reads in the engine against plain hooks on transformers' own forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.captures import (
    MAX_VALUES,
    ActivationCapture,
    AllFeatures,
    CaptureSpec,
    FeatureValues,
    Projections,
    Residuals,
    Span,
    TopFeatures,
)
from inference.engine.cache.prefix_keys import PREFIX_BLOCK
from inference.engine.kernels import native
from inference.engine.kernels.fused_layers import FusedLayer
from inference.engine.messages import CaptureEvent, TokensEvent
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model
from inference.engine.models.sites import site_width
from inference.interventions import Intervention, Site, VectorEdit
from tests.builders import build_model
from tests.engine.harness import EngineHarness, Transcript
from tests.engine.readers import TopKReader, plain_residuals, top_k_reader
from tests.engine.test_accelerator import accelerated

PROMPT = tuple(range(5, 25))
SITES = [Site(1, "resid_post"), Site(2, "resid_pre"), Site(1, "mlp_raw"), Site(1, "mlp_out"), Site(2, "attn_out")]
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
BACKENDS: dict[str, dict[str, Any]] = {
    "contiguous": {"kv_cache_backend": "contiguous"},
    "paged": {"kv_cache_backend": "paged"},
    "small chunks": {"max_prefill_tokens": 6},
}
ON: dict[str, Any] = {"speculative_method": "prompt_lookup", "prompt_lookup_min": 1, "min_speculative_gain": 0.0}


def captured(transcript: Transcript, number: int = 0) -> list[ActivationCapture]:
    events = [e for e in transcript.events if isinstance(e, CaptureEvent)]
    return [r for e in events for r in e.captures if r.number == number]


def places(transcript: Transcript, number: int = 0) -> list[int]:
    return [place for r in captured(transcript, number) for place in r.places or ()]


def values(transcript: Transcript, number: int = 0) -> np.ndarray:
    return np.concatenate([r.values for r in captured(transcript, number)])


def run_tokens(transcript: Transcript, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    """All that the model ran: the last token is only sampled."""
    return [*prompt, *transcript.token_ids][:-1]


@pytest.mark.parametrize("site", SITES, ids=str)
@pytest.mark.parametrize("config", BACKENDS.values(), ids=BACKENDS)
def test_residuals_equal_a_plain_hook(loaded, site, config):
    got = EngineHarness(loaded, **config).generate(prompt=PROMPT, captures=(CaptureSpec(site=site),))

    expected = plain_residuals(loaded, run_tokens(got), site)
    assert places(got) == list(range(len(PROMPT) + 7))
    np.testing.assert_allclose(values(got), expected, **CLOSE)


@pytest.mark.parametrize("site", SITES, ids=str)
def test_before_and_after_steering(llama, site):
    """Whoever came to the site first: the reader is there before the profile, and then comes again."""
    vector = torch.randn(site_width(llama.module, site), generator=torch.Generator().manual_seed(1))
    intervention = Intervention(f"add-{site}", (VectorEdit(site, vector),))
    captures = (CaptureSpec(site=site, stage="pre"), CaptureSpec(site=site, stage="post"))
    harness = EngineHarness(llama)
    first = harness.add(prompt=PROMPT, captures=captures, max_tokens=30)
    harness.step()
    second = harness.add(prompt=PROMPT, captures=captures, intervention=intervention, max_tokens=12)
    harness.run()

    for got, step in ((first, torch.zeros_like(vector)), (second, vector)):
        before = plain_residuals(llama, run_tokens(got), site, steer=lambda h, by=step: h + by, steered=site)
        np.testing.assert_allclose(values(got, 1), before, **CLOSE)
        np.testing.assert_allclose(values(got, 1) - values(got, 0), step.expand(len(places(got)), -1), **CLOSE)


def test_what_steered_an_earlier_layer_is_in_the_residual(llama):
    vector = torch.ones(32)
    intervention = Intervention("one", (VectorEdit(Site(0), vector),))
    got = EngineHarness(llama).generate(
        prompt=PROMPT, intervention=intervention, captures=(CaptureSpec(site=Site(2), stage="pre"),)
    )

    expected = plain_residuals(llama, run_tokens(got), Site(2), steer=lambda h: h + vector, steered=Site(0))
    np.testing.assert_allclose(values(got), expected, **CLOSE)


def test_features_equal_the_sae_s_own_encode_of_plain_residuals(llama):
    sae, site = top_k_reader(), Site(1)
    captures = (
        CaptureSpec(site=site, probe=FeatureValues(sae, (7, 3, 11))),
        CaptureSpec(site=site, probe=TopFeatures(sae, 4)),
        CaptureSpec(site=site, probe=TopFeatures(sae, 2), phase="generation"),
        CaptureSpec(site=site, probe=AllFeatures(sae), pooling="mean"),
        CaptureSpec(site=site, probe=AllFeatures(sae), pooling="max"),
        CaptureSpec(site=site, probe=AllFeatures(sae), pooling="last", phase="prompt"),
    )
    got = EngineHarness(llama, max_prefill_tokens=6).generate(prompt=PROMPT, captures=captures)

    a = sae.expected(plain_residuals(llama, run_tokens(got), site)).numpy()
    np.testing.assert_allclose(values(got), a[:, [7, 3, 11]], **CLOSE)
    ranked = np.argsort(-a, axis=1, kind="stable")
    found = np.concatenate([r.features for r in captured(got, 1) if r.features is not None])
    assert found.tolist() == ranked[:, :4].tolist()
    np.testing.assert_allclose(values(got, 1), -np.sort(-a, axis=1)[:, :4], **CLOSE)
    generated = np.concatenate([r.features for r in captured(got, 2) if r.features is not None])
    assert generated.tolist() == ranked[len(PROMPT) :, :2].tolist()
    np.testing.assert_allclose(values(got, 3)[0], a.mean(axis=0), **CLOSE)
    np.testing.assert_allclose(values(got, 4)[0], a.max(axis=0), **CLOSE)
    np.testing.assert_allclose(values(got, 5)[0], a[len(PROMPT) - 1], **CLOSE)
    assert [captured(got, n)[0].num_tokens for n in (3, 4, 5)] == [len(a), len(a), len(PROMPT)]


def test_a_full_encode_is_made_only_where_it_is_asked_for_and_once_for_all(llama):
    plain, full = top_k_reader("plain"), top_k_reader("full")
    harness = EngineHarness(llama)
    harness.add(prompt=PROMPT, captures=(CaptureSpec(site=Site(1), probe=FeatureValues(plain, (1,))),), max_tokens=1)
    for count in (3, 4):
        probe = TopFeatures(full, count)
        harness.add(
            prompt=PROMPT[:9], captures=(CaptureSpec(site=Site(1), probe=probe, spans=(Span(2, 6),)),), max_tokens=6
        )
    harness.run()

    assert plain.num_encoded == []
    assert full.num_encoded == [8]  # both in one step, and nothing in those that read no token


def test_wide_saes_are_encoded_a_few_tokens_at_a_time(llama, monkeypatch):
    sae = top_k_reader(d_sae=64)
    captures = tuple(
        CaptureSpec(site=Site(1), probe=AllFeatures(sae), pooling=pooling) for pooling in ("mean", "max", "last")
    )
    whole = EngineHarness(llama).generate(prompt=PROMPT, captures=captures)
    monkeypatch.setattr("inference.engine.capture.step.MAX_ENCODED", 3 * 64)
    sae.num_encoded.clear()
    sliced = EngineHarness(llama).generate(prompt=PROMPT, captures=captures)

    assert max(sae.num_encoded) == 3
    for number in range(3):
        np.testing.assert_allclose(values(sliced, number), values(whole, number), **CLOSE)


spans = st.lists(
    st.tuples(st.integers(0, 30), st.none() | st.integers(0, 30)).map(lambda ends: Span(*ends)), min_size=1, max_size=3
)


@given(
    spans=spans,
    phase=st.sampled_from(("prompt", "generation", "both")),
    chunk=st.integers(1, 23),
    length=st.integers(1, 22),
    skipped=st.frozensets(st.integers(5, 27), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_spans_phases_and_chunk_borders(loaded_models, spans, phase, chunk, length, skipped):
    llama, prompt, site = loaded_models["llama"], tuple(range(5, 5 + length)), Site(2)
    captures = (
        CaptureSpec(site=site, spans=tuple(spans), phase=phase, skip_token_ids=skipped),
        CaptureSpec(site=site, spans=tuple(spans), phase=phase, skip_token_ids=skipped, pooling="mean"),
    )
    got = EngineHarness(llama, max_prefill_tokens=chunk).generate(prompt=prompt, captures=captures, max_tokens=5)

    tokens = run_tokens(got, prompt)
    wanted = [
        place
        for place, token in enumerate(tokens)
        if any(span.start <= place and (span.end is None or place < span.end) for span in spans)
        and phase in {"both", "prompt" if place < length else "generation"}
        and token not in skipped
    ]
    assert places(got) == wanted
    if wanted:
        expected = plain_residuals(llama, tokens, site)[wanted]
        np.testing.assert_allclose(values(got), expected, **CLOSE)
        np.testing.assert_allclose(values(got, 1)[0], expected.mean(dim=0), **CLOSE)
    else:
        assert not captured(got, 1)


def test_bounds_let_only_tokens_through_that_are_above(llama):
    sae, site = top_k_reader(), Site(1)
    captures = (CaptureSpec(site=site, probe=FeatureValues(sae, (7, 3), above=(2.0, 9.0))),)
    got = EngineHarness(llama, max_prefill_tokens=6).generate(prompt=PROMPT, captures=captures)

    a = sae.expected(plain_residuals(llama, run_tokens(got), site))[:, [7, 3]].numpy()
    above = np.flatnonzero((a > np.array([2.0, 9.0])).any(axis=1))
    assert 0 < len(above) < len(a), "the bounds are to let some tokens through"
    assert places(got) == above.tolist()
    np.testing.assert_allclose(values(got), a[above], **CLOSE)


def test_bounds_of_products_let_only_tokens_through_that_are_above(llama):
    site, rng = Site(1), np.random.default_rng(5)
    residuals = plain_residuals(llama, PROMPT, site).numpy()
    vectors = rng.normal(size=(2, residuals.shape[1])).astype(np.float32)
    bounds = tuple(float(np.quantile(column, 0.7)) for column in (residuals @ vectors.T).T)
    probe = Projections(vectors.tobytes(), 2, above=bounds)
    got = EngineHarness(llama, max_prefill_tokens=6).generate(
        prompt=PROMPT, captures=(CaptureSpec(site=site, probe=probe, phase="prompt"),)
    )
    expected = residuals @ vectors.T
    above = np.flatnonzero((expected > np.array(bounds)).any(axis=1))
    assert 0 < len(above) < len(expected)
    assert places(got) == above.tolist()
    np.testing.assert_allclose(values(got), expected[above], **CLOSE)


# In company


def test_those_who_do_not_read_get_the_same_tokens_bit_by_bit(llama):
    alone = EngineHarness(llama).generate(prompt=PROMPT[:9], logprobs=3)
    harness = EngineHarness(llama)
    quiet = harness.add(prompt=PROMPT[:9], logprobs=3)
    harness.add(prompt=PROMPT[3:], captures=(CaptureSpec(site=Site(1)), CaptureSpec(site=Site(2, "attn_out"))))
    harness.run()

    assert quiet.token_ids == alone.token_ids
    assert not any(isinstance(event, CaptureEvent) for event in quiet.events)


def test_hooks_go_with_the_last_reader(llama):
    def num_hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in llama.module.modules())

    before = num_hooks()
    harness = EngineHarness(llama)
    first = harness.add(
        prompt=PROMPT, captures=(CaptureSpec(site=Site(1)), CaptureSpec(site=Site(1), stage="pre")), max_tokens=2
    )
    second = harness.add(prompt=PROMPT, captures=(CaptureSpec(site=Site(1)),), max_tokens=30)
    assert num_hooks() == before + 1
    while not first.is_ended:
        harness.step()
    assert num_hooks() == before + 1
    harness.cancel(second)
    assert num_hooks() == before


def test_events_come_before_the_tokens_of_their_step_and_pools_before_the_end(llama):
    captures = (CaptureSpec(site=Site(1)), CaptureSpec(site=Site(1), pooling="mean"))
    got = EngineHarness(llama).generate(prompt=PROMPT, captures=captures, max_tokens=3)

    kinds = [type(e).__name__ for e in got.events]
    assert kinds == ["CaptureEvent", "TokensEvent"] * 3 + ["CaptureEvent", "FinishedEvent"]
    assert [r.number for e in got.events if isinstance(e, CaptureEvent) for r in e.captures] == [0, 0, 0, 1]
    assert sum(isinstance(e, TokensEvent) for e in got.events) == 3


def test_a_prompt_is_read_without_an_answer(llama):
    got = EngineHarness(llama).generate(
        prompt=PROMPT, captures=(CaptureSpec(site=Site(1), pooling="last"),), max_tokens=0
    )

    expected = plain_residuals(llama, list(PROMPT), Site(1))[-1]
    np.testing.assert_allclose(values(got)[0], expected, **CLOSE)
    assert (got.token_ids, got.finished.reason) == ([], "length")


# Caches


@pytest.mark.parametrize("backend", ["contiguous", "paged"])
def test_a_read_runs_what_the_cache_has_but_no_more(llama, backend):
    prompt = tuple(range(3, 3 + 3 * PREFIX_BLOCK + 5))
    harness = EngineHarness(llama, kv_cache_backend=backend)
    harness.generate(prompt=prompt)
    wanted = {
        (Span(),): 0,
        (Span(40, 41), Span(90)): PREFIX_BLOCK,
        (Span(2 * PREFIX_BLOCK),): 2 * PREFIX_BLOCK,
        (Span(200),): 3 * PREFIX_BLOCK,
    }
    for spans, cached in wanted.items():
        got = harness.generate(prompt=prompt, captures=(CaptureSpec(site=Site(1), spans=spans),))
        tokens = run_tokens(got, prompt)
        chosen = [p for p in range(len(tokens)) if any(s.start <= p < (s.end or len(tokens)) for s in spans)]
        assert got.finished.usage.cached_tokens == cached
        assert places(got) == chosen
        if chosen:
            np.testing.assert_allclose(values(got), plain_residuals(llama, tokens, Site(1))[chosen], **CLOSE)

    answer = harness.generate(prompt=prompt, captures=(CaptureSpec(site=Site(1), phase="generation"),))
    assert answer.finished.usage.cached_tokens == 3 * PREFIX_BLOCK


def test_a_read_that_passes_over_cached_tokens_leaves_the_cache_as_it_is(llama):
    prompt = tuple(range(3, 3 + 2 * PREFIX_BLOCK + 5))
    harness = EngineHarness(llama)
    captures = (CaptureSpec(site=Site(1), passes_over_cached=True),)
    first, second = (harness.generate(prompt=prompt, captures=captures, max_tokens=3) for _ in range(2))

    assert second.finished.usage.cached_tokens == 2 * PREFIX_BLOCK
    assert places(first) == list(range(len(prompt) + 2))
    assert places(second) == places(first)[2 * PREFIX_BLOCK :]
    np.testing.assert_allclose(values(second), values(first)[2 * PREFIX_BLOCK :], **CLOSE)


def test_two_who_begin_alike_at_once_are_both_read(llama):
    prompt = tuple(range(3, 3 + 2 * PREFIX_BLOCK + 5))
    harness = EngineHarness(llama, max_prefill_tokens=16)
    both = [harness.add(prompt=prompt, captures=(CaptureSpec(site=Site(1), phase="prompt"),)) for _ in range(2)]
    harness.run()

    assert [places(got) for got in both] == [list(range(len(prompt)))] * 2


def test_a_sequence_that_gave_way_is_read_once(llama):
    """Five blocks for three sequences that grow over a block's end."""
    harness = EngineHarness(llama, kv_cache_backend="paged", kv_cache_bytes=64 * 1024, max_prefill_tokens=16)
    captures = (CaptureSpec(site=Site(1)), CaptureSpec(site=Site(1), pooling="mean"))
    got = [harness.add(prompt=tuple(range(3 + i, 32 + i)), captures=captures, max_tokens=40) for i in range(3)]
    harness.run()

    assert harness.engine.num_preemptions
    for i, transcript in enumerate(got):
        tokens = run_tokens(transcript, tuple(range(3 + i, 32 + i)))
        expected = plain_residuals(llama, tokens, Site(1))
        assert places(transcript) == list(range(len(tokens)))
        np.testing.assert_allclose(values(transcript), expected, **CLOSE)
        np.testing.assert_allclose(values(transcript, 1)[0], expected.mean(dim=0), **CLOSE)


@pytest.mark.parametrize("stop", [(), ("e",)])
def test_guesses_are_read_where_they_prove_right_and_only_there(llama, stop):
    prompt = (5, 6, 7, 8, 5, 6, 7, 9)
    fields: dict[str, Any] = {"prompt": prompt, "max_tokens": 90, "allowed_token_ids": tuple(range(20, 26))}
    captures = (CaptureSpec(site=Site(1)),)
    plain = EngineHarness(llama).generate(captures=captures, stop=stop, **fields)
    harness = EngineHarness(llama, **ON)
    guessed = harness.generate(captures=captures, stop=stop, **fields)

    assert harness.engine.stats().accepted_draft_tokens
    assert guessed.token_ids == plain.token_ids
    assert places(guessed) == places(plain)
    np.testing.assert_allclose(values(guessed), values(plain), **CLOSE)


def test_pools_do_without_guesses(llama):
    fields: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 60, "allowed_token_ids": tuple(range(20, 26))}
    harness = EngineHarness(llama, **ON)
    got = harness.generate(captures=(CaptureSpec(site=Site(1), pooling="mean"),), **fields)

    expected = plain_residuals(llama, run_tokens(got), Site(1)).mean(dim=0)
    np.testing.assert_allclose(values(got)[0], expected, **CLOSE)
    assert not harness.engine.stats().draft_tokens


# What does not work


def test_what_does_not_fit_is_refused_and_leaves_nothing(llama):
    narrow = top_k_reader(width=8)
    vector = Intervention("bad", (VectorEdit(Site(1), torch.ones(5)),))
    wrong: dict[str, dict[str, Any]] = {
        "layers 0 to 3": {"captures": (CaptureSpec(site=Site(9)),)},
        "32 wide": {"captures": (CaptureSpec(site=Site(1), probe=TopFeatures(narrow, 2)),)},
        "0 to 47": {
            "captures": (
                CaptureSpec(site=Site(1)),
                CaptureSpec(site=Site(1), probe=FeatureValues(top_k_reader(), (48,))),
            )
        },
        "edit has 5 values": {"captures": (CaptureSpec(site=Site(1)),), "intervention": vector},
    }
    harness = EngineHarness(llama)
    for text, fields in wrong.items():
        got = harness.generate(prompt=PROMPT, **fields)
        assert got.failed.code == "sae_mismatch"
        assert text in got.failed.message
        harness.engine.check_integrity()


def test_reads_that_bring_too_much_are_refused(llama):
    sae = top_k_reader()
    got = EngineHarness(llama).generate(
        prompt=PROMPT, captures=(CaptureSpec(site=Site(1), probe=TopFeatures(sae, 1 << 23)),)
    )

    assert got.failed.code == "reading_too_large"
    assert str(MAX_VALUES) in got.failed.message


def test_a_reader_that_raises_fails_alone(llama):
    class Broken(TopKReader):
        def encode(self, h):
            raise RuntimeError("broken")

    broken = Broken("broken", torch.ones(32, 4), 2)
    harness = EngineHarness(llama)
    bad = harness.add(prompt=PROMPT, captures=(CaptureSpec(site=Site(1), probe=TopFeatures(broken, 2)),))
    good = harness.add(prompt=PROMPT[2:], captures=(CaptureSpec(site=Site(1)),))
    harness.run()

    assert bad.failed.code == "server_error"
    np.testing.assert_allclose(values(good), plain_residuals(llama, run_tokens(good, PROMPT[2:]), Site(1)), **CLOSE)


def test_numbers_that_are_none_fail_their_request_alone(llama):
    class Infinite(TopKReader):
        def activations(self, h, features):
            return torch.full((len(h), len(features)), float("inf"))

    infinite = Infinite("infinite", torch.ones(32, 4), 2)
    harness = EngineHarness(llama)
    bad = harness.add(prompt=PROMPT, captures=(CaptureSpec(site=Site(1), probe=FeatureValues(infinite, (0,))),))
    good = harness.add(prompt=PROMPT[2:], captures=(CaptureSpec(site=Site(1)),))
    harness.run()

    assert bad.failed.code == "server_error"
    assert "not finite" in bad.failed.message
    assert places(good) == list(range(len(PROMPT) - 2 + 7))


def test_a_site_that_the_forward_pass_leaves_out_is_a_failure(llama):
    """Never an answer with fewer numbers than were asked for."""
    harness = EngineHarness(llama)
    got = harness.add(prompt=PROMPT, captures=(CaptureSpec(site=Site(1)),))
    layer: Any = llama.module.model.layers[1]
    layer._forward_hooks.clear()
    harness.run()

    assert got.failed.code == "server_error"


def test_other_steps_are_not_read(llama):
    """A read of the prompt's first tokens costs the answer's steps nothing but a look."""
    seen = []

    class Watching(TopKReader):
        def activations(self, h, features):
            seen.append(len(h))
            return super().activations(h, features)

    sae = Watching("watching", torch.ones(32, 4), 2)
    read = CaptureSpec(site=Site(1), probe=FeatureValues(sae, (0,)), spans=(Span(0, 2),))
    EngineHarness(llama).generate(prompt=PROMPT, captures=(read,), max_tokens=9)

    assert seen == [2]


def test_residuals_are_the_default():
    assert CaptureSpec(site=Site(0)).probe == Residuals()


# Fast ways


@pytest.mark.parametrize("site", SITES, ids=str)
def test_fused_layers_give_way_where_a_read_needs_them_to(tmp_path, site):
    native.activate()
    spec = ModelSpec("tiny", build_model(tmp_path), dtype="float32", device="cpu", weights="int8")
    loaded = load_model(spec)
    if not any(isinstance(vars(m).get("forward"), FusedLayer) for m in loaded.module.modules()):
        pytest.skip("this processor lacks the products")
    before = EngineHarness(loaded).generate(prompt=PROMPT).token_ids
    got = EngineHarness(loaded).generate(prompt=PROMPT, captures=(CaptureSpec(site=site),))

    assert got.token_ids == before
    expected = plain_residuals(loaded, run_tokens(got), site)
    np.testing.assert_allclose(values(got), expected, rtol=1e-2, atol=1e-2)


def test_steps_that_read_run_without_graphs_and_others_with_them(llama):
    harness = EngineHarness(llama, accelerate=accelerated())
    vector = Intervention("v", (VectorEdit(Site(1), torch.ones(32)),))
    for intervention in (None, vector):
        plain = harness.generate(prompt=PROMPT, max_tokens=20, intervention=intervention)
        graphs = harness.engine.graphs
        assert graphs is not None
        captured = graphs.num_captured
        assert captured
        captures = (
            CaptureSpec(site=Site(2), spans=(Span(0, len(PROMPT) + 10),)),
            CaptureSpec(site=Site(1), stage="pre"),
        )
        got = harness.generate(prompt=PROMPT, max_tokens=20, intervention=intervention, captures=captures)
        assert got.token_ids == plain.token_ids
        assert graphs.num_captured == captured
        before = plain_residuals(llama, run_tokens(got), Site(1))
        np.testing.assert_allclose(values(got, 1), before, **CLOSE)
