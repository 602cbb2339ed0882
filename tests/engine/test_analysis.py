"""Analyses in the engine: lenses and attributions, against transformers' own model and autograd."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from inference.analyses import AttributionEvent, AttributionRequest, LensEvent, LensRequest, attribution_sites
from inference.captures import CaptureSpec
from inference.engine.analysis.layers import LayerStack
from inference.engine.messages import CaptureEvent
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model
from inference.engine.models.sites import decoder_layers
from inference.interventions import Intervention, Site, VectorEdit
from tests.builders import build_model, build_request
from tests.engine.harness import EngineHarness, Transcript
from tests.engine.tiny_architectures import write_tiny_model

IDS = tuple(3 + (11 * i) % 300 for i in range(23))
TARGET, CONTRAST = 7, 19
LAYER = 1
SITE = Site(LAYER)


class RandomSAE:
    """``a = relu(x W + b)``, decoded with other weights."""

    key = "random"

    def __init__(self, d_in: int = 32, d_sae: int = 96) -> None:
        generator = torch.Generator().manual_seed(5)
        self.d_in, self.d_sae = d_in, d_sae
        self.w_enc = torch.randn(d_in, d_sae, generator=generator)
        self.w_dec = torch.randn(d_sae, d_in, generator=generator) / d_sae
        self.b_dec = torch.randn(d_in, generator=generator) / 8

    def encode(self, h: torch.Tensor) -> torch.Tensor:
        return (h @ self.w_enc - 1).relu()

    def decode(self, activations: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return activations @ self.w_dec + self.b_dec


SAE = RandomSAE()


def captured(harness: EngineHarness, sites: tuple[Site, ...], ids: tuple[int, ...] = IDS, **fields: Any) -> list[Any]:
    got = harness.generate(prompt=ids, max_tokens=0, captures=tuple(CaptureSpec(site=site) for site in sites), **fields)
    found = [one for e in got.events if isinstance(e, CaptureEvent) for one in e.captures]
    return [np.concatenate([one.values for one in found if one.number == n]) for n in range(len(sites))]


def question(harness: EngineHarness, site: Site = SITE, **fields: Any) -> AttributionRequest:
    steering = {"intervention": fields.pop("intervention")} if "intervention" in fields else {}
    sites = attribution_sites(site, len(LayerStack(harness.engine._loaded.module)))
    residual, *inputs = captured(harness, sites, **steering)
    asked = {"reader": SAE, "target": TARGET, "token_ids": IDS, "residual": residual, "inputs": tuple(inputs), **fields}
    return AttributionRequest(request_id="a", model="tiny", **asked)


def answer(transcript: Transcript) -> AttributionEvent:
    assert transcript.finished.reason == "stop"
    (event,) = [event for event in transcript.events if isinstance(event, AttributionEvent)]
    return event


def attribute(harness: EngineHarness, request: AttributionRequest) -> AttributionEvent:
    transcript = harness.add(request)
    harness.run()
    return answer(transcript)


def dense(event: AttributionEvent, values: Any) -> np.ndarray:
    found = np.zeros((len(IDS), SAE.d_sae))
    found[event.places, event.features] = values
    return found


def logits_of(module: Any, site: Site, change: Any, *, keep: list[Any] | None = None, add: Any = None) -> torch.Tensor:
    """The last logits of transformers' model, with ``change`` added at the site, and ``add`` at layer 3's output."""

    def hook(_: Any, __: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        if keep is not None:
            keep.append(hidden[0].detach())
        return (hidden + change, *output[1:]) if isinstance(output, tuple) else hidden + change

    def later(_: Any, __: Any, output: Any) -> Any:
        return (output[0] + add, *output[1:]) if isinstance(output, tuple) else output + add

    layers = decoder_layers(module)
    handles = [layers[site.layer - (site.kind == "resid_pre")].register_forward_hook(hook)]
    if add is not None:
        handles.append(layers[3].register_forward_hook(later))
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        logits: torch.Tensor = module(torch.tensor([IDS]), use_cache=False).logits[0, -1].float()
    finally:
        module.set_attn_implementation(before)
        for handle in handles:
            handle.remove()
    return logits


def metric(logits: torch.Tensor, kind: str = "logit") -> torch.Tensor:
    if kind == "contrast":
        return logits[TARGET] - logits[CONTRAST]
    return logits[TARGET] - logits.mean() if kind == "logit" else logits.log_softmax(-1)[TARGET]


def expected(module: Any, site: Site, kind: str = "logit", *, add: Any = None) -> np.ndarray:
    """Activations times the gradient of what decoder rows add, by one backward pass through transformers' model."""
    keep: list[Any] = []
    scales = torch.zeros(len(IDS), SAE.d_sae, requires_grad=True)
    metric(logits_of(module, site, scales @ SAE.w_dec, keep=keep, add=add), kind).backward()
    assert scales.grad is not None
    return (SAE.encode(keep[0]) * scales.grad).double().numpy()


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt2", "gpt_oss", "qwen3_moe"])
def test_attributions_are_those_of_autograd_through_transformers(tmp_path, model_type):
    """Tied and untied heads, softcaps, norms relative to one, sinks, windows, learned positions, experts."""
    module = write_tiny_model(tmp_path, model_type)
    harness = EngineHarness(
        load_model(ModelSpec("tiny", tmp_path, dtype="float32", device="cpu")), max_prefill_tokens=9
    )
    for site in (Site(LAYER), Site(2, "resid_pre"), Site(3)):
        event = attribute(harness, question(harness, site))
        reference = expected(module, site)
        np.testing.assert_allclose(
            dense(event, event.attributions), reference, rtol=1e-3, atol=1e-4 * np.abs(reference).max()
        )


@pytest.mark.parametrize("kind", ["logprob", "contrast"])
def test_metrics(loaded, kind):
    harness = EngineHarness(loaded)
    fields: dict[str, Any] = {"contrast": CONTRAST} if kind == "contrast" else {"metric": "logprob"}
    event = attribute(harness, question(harness, **fields))
    reference = expected(loaded.module, Site(LAYER), kind)
    np.testing.assert_allclose(dense(event, event.attributions), reference, rtol=1e-3, atol=1e-4 * reference.max())
    logits = logits_of(loaded.module, Site(LAYER), 0.0)
    assert event.metric == pytest.approx(float(metric(logits, kind)), abs=1e-4)
    assert event.logprob == pytest.approx(float(logits.log_softmax(-1)[TARGET]), abs=1e-4)
    assert event.logit == pytest.approx(float(logits[TARGET]), abs=1e-4)


def test_small_ablations_change_the_metric_by_the_attribution(llama):
    """Finite differences in transformers' model: a part of a feature is taken out at one token."""
    event = attribute(EngineHarness(llama), question(EngineHarness(llama)))
    part = 0.01
    for number in (0, 1, 5, 20):
        place, feature = event.places[number], event.features[number]
        change = torch.zeros(len(IDS), 32)
        change[place] = part * float(event.activations[number]) * SAE.w_dec[feature]
        with torch.no_grad():
            effect = metric(logits_of(llama.module, Site(LAYER), change)) - metric(
                logits_of(llama.module, Site(LAYER), -change)
            )
        assert float(effect) / (2 * part) == pytest.approx(float(event.attributions[number]), rel=2e-2)


def test_attributions_errors_and_biases_add_up(loaded):
    harness = EngineHarness(loaded)
    request = question(harness, max_nodes=40)
    event = attribute(harness, request)

    parts = event.attributions.sum() + event.other + event.errors.sum() + event.biases.sum()
    assert parts == pytest.approx(event.total, rel=1e-5)
    assert (np.abs(event.attributions[:-1]) >= np.abs(event.attributions[1:])).all()
    active = SAE.encode(torch.from_numpy(request.residual))
    assert (len(event.features), event.num_active) == (40, int((active > 0).sum()))
    np.testing.assert_array_equal(event.activations, active[event.places, event.features])
    # The directional derivative along the residual, by finite differences: scale the residual a little.
    residual = torch.from_numpy(request.residual)
    with torch.no_grad():
        up, down = (metric(logits_of(loaded.module, Site(LAYER), e * residual)) for e in (1e-2, -1e-2))
    assert float(up - down) / 2e-2 == pytest.approx(event.total, rel=5e-2, abs=1e-2)


def test_the_whole_residual_of_skipped_places_is_error(loaded):
    harness = EngineHarness(loaded)
    whole = attribute(harness, question(harness, max_nodes=5000))
    event = attribute(harness, question(harness, max_nodes=5000, skipped_places=frozenset({0, 5})))
    values, before = (dense(one, one.attributions) for one in (event, whole))
    assert not values[[0, 5]].any()
    rest = [place for place in range(len(IDS)) if place not in {0, 5}]
    np.testing.assert_allclose(values[rest], before[rest], rtol=1e-6)
    np.testing.assert_allclose(event.errors[rest], whole.errors[rest], rtol=1e-6)
    parts = before.sum(1) + whole.errors + whole.biases
    np.testing.assert_allclose(event.errors[[0, 5]], parts[[0, 5]], rtol=1e-4)
    assert not event.biases[[0, 5]].any()
    assert event.total == pytest.approx(whole.total)


@pytest.mark.parametrize(("dtype", "weights"), [("bfloat16", "native"), ("float32", "int8")])
def test_other_weights(tmp_path, dtype, weights):
    """Gradients in 16 bits are rougher; those of int8 weights are the gradients of what these weights compute."""
    path = build_model(tmp_path, "llama")
    exact = EngineHarness(load_model(ModelSpec("tiny", path, dtype="float32", device="cpu")))
    rough = EngineHarness(load_model(ModelSpec("tiny", path, dtype=dtype, weights=weights, device="cpu")))
    ours, theirs = (attribute(one, question(one)) for one in (rough, exact))
    a, b = dense(ours, ours.attributions).ravel(), dense(theirs, theirs.attributions).ravel()
    assert a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) > 0.99
    assert ours.difference < 0.05


def test_steering_after_the_site_counts_as_a_constant(llama):
    """The gradient is that at the steered residuals, and a steered layer's output is not compared."""
    vector = torch.randn(32, generator=torch.Generator().manual_seed(1))
    steering = Intervention("add", (VectorEdit(Site(3), vector),))
    harness = EngineHarness(llama)
    event = attribute(harness, question(harness, intervention=steering, steered_layers=frozenset({3})))
    reference = expected(llama.module, Site(LAYER), add=vector)
    np.testing.assert_allclose(dense(event, event.attributions), reference, rtol=1e-3, atol=1e-4 * reference.max())
    assert not np.allclose(reference, expected(llama.module, Site(LAYER)), rtol=0.1)

    unknown = harness.add(question(harness, intervention=steering))
    harness.run()
    assert unknown.failed.code == "model_not_differentiable"


def test_the_last_lens_is_the_models_own_prediction(loaded):
    harness = EngineHarness(loaded)
    sites = tuple(Site(layer) for layer in range(4))
    rows = captured(harness, sites)
    targets = (*IDS[1:], 0)
    transcript = harness.add(
        LensRequest(request_id="l", model="tiny", residuals=np.concatenate(rows), count=5, targets=targets * 4)
    )
    harness.run()
    (event,) = [one for one in transcript.events if isinstance(one, LensEvent)]
    with torch.no_grad():
        layers: list[Any] = []
        handles = [
            layer.register_forward_hook(lambda _, __, out: layers.append(out[0] if isinstance(out, tuple) else out))
            for layer in decoder_layers(loaded.module)
        ]
        loaded.module.set_attn_implementation("eager")
        logits = loaded.module(torch.tensor([IDS]), use_cache=False).logits[0]
        loaded.module.set_attn_implementation("millm")
        for handle in handles:
            handle.remove()
        decoder = loaded.module.get_decoder()
        middle = loaded.module.lm_head(decoder.norm(layers[1][0]))
    for layer, reference in ((3, logits), (1, middle)):
        part = slice(layer * len(IDS), (layer + 1) * len(IDS))
        logprobs = reference.log_softmax(-1)
        best = logprobs.topk(5)
        np.testing.assert_array_equal(event.tokens[part], best.indices)
        np.testing.assert_allclose(event.logprobs[part], best.values, atol=1e-4)
        chosen = logprobs[torch.arange(len(IDS)), torch.tensor(targets)]
        np.testing.assert_allclose(event.target_logprobs[part], chosen, atol=1e-4)
        ranks = (logprobs > chosen.unsqueeze(1)).sum(-1) + 1
        np.testing.assert_array_equal(event.target_ranks[part], ranks)


def test_neighbours_get_the_same_tokens_and_logprobs(llama):
    """Two attributions and a lens run beside streams, between their steps, which change nothing for the streams."""

    def streams(harness: EngineHarness) -> list[Transcript]:
        return [
            harness.add(prompt=IDS[: 5 + 3 * i], max_tokens=40, temperature=0.8, seed=i, logprobs=3) for i in range(3)
        ]

    alone = EngineHarness(llama)
    expected_streams = streams(alone)
    alone.run()
    beside = EngineHarness(llama)
    asked = [question(beside), question(beside, target=9)]
    lens = LensRequest(request_id="l", model="tiny", residuals=np.concatenate([asked[0].residual] * 9), count=2)
    got = streams(beside)
    for _ in range(3):
        beside.step()
    transcripts = [beside.add(one) for one in (*asked, lens)]
    assert beside.engine.num_waiting >= 3
    beside.run()
    assert all(one.finished for one in transcripts)
    for ours, theirs in zip(got, expected_streams, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs == theirs.logprobs
    assert answer(transcripts[0]).attributions.tolist() != answer(transcripts[1]).attributions.tolist()


def test_streams_run_between_the_units(llama):
    """An analysis of many units does not keep the batch from running."""
    harness = EngineHarness(llama)
    rows = np.zeros((64 * 40, 32), np.float32)
    lens = harness.add(LensRequest(request_id="l", model="tiny", residuals=rows, count=1))
    stream = harness.add(prompt=IDS, max_tokens=5)
    while not stream.is_ended:
        harness.step()
    assert not lens.is_ended
    harness.run()
    assert lens.finished


def test_an_analysis_runs_while_a_static_batch_waits_to_fill(llama):
    harness = EngineHarness(llama, batching_mode="static", batch_wait_timeout_s=60.0, max_batch_size=4)
    waiting = harness.transcripts["waiting"] = Transcript()
    assert not harness.engine.add(build_request(IDS), "waiting", time.monotonic())
    lens = harness.add(LensRequest(request_id="l", model="tiny", residuals=np.zeros((3, 32), np.float32), count=1))
    for _ in range(3):
        harness.step()
    assert lens.finished
    assert not waiting.is_ended


def test_failures_concern_only_their_analysis(llama):
    harness = EngineHarness(llama)
    fine = question(harness)
    bad_values = fine.residual.copy()
    bad_values[3, 4] = np.nan
    bad_inputs = tuple(np.where(np.isfinite(one), np.inf, one).astype(np.float32) for one in fine.inputs)
    refused = {
        "NaN in the residual": ({"residual": bad_values}, "not_finite"),
        "infinite inputs": ({"inputs": bad_inputs}, "not_finite"),
        "another layer's input": ({"inputs": fine.inputs[::-1]}, "model_not_differentiable"),
        "token": ({"target": 10**6}, "invalid_analysis"),
        "width": ({"reader": RandomSAE(16)}, "invalid_analysis"),
        "tokens": ({"token_ids": IDS[:4]}, "invalid_analysis"),
        "an SAE that raises": ({"reader": type("Bad", (RandomSAE,), {"encode": None})()}, "server_error"),
    }
    names = {field: getattr(fine, field) for field in fine.__dataclass_fields__}
    for what, (change, code) in refused.items():
        transcript = harness.add(AttributionRequest(**{**names, **change}))
        harness.run()
        assert transcript.failed.code == code, what
    nan = harness.add(LensRequest(request_id="l", model="tiny", residuals=bad_values, count=1))
    harness.run()
    assert nan.failed.code == "not_finite"
    assert len(attribute(harness, fine).features)


def test_the_model_is_left_as_it_was(llama):
    layers = decoder_layers(llama.module)
    before = [vars(layer).get("forward") for layer in layers]
    harness = EngineHarness(llama)
    attribute(harness, question(harness))
    assert [vars(layer).get("forward") for layer in layers] == before
    assert not any(parameter.requires_grad for parameter in llama.module.parameters())


def test_cancelled_and_ended_analyses(llama):
    harness = EngineHarness(llama)
    asked = [question(harness), question(harness)]
    first, second = (harness.add(one) for one in asked)
    harness.step()
    harness.cancel(first)
    assert first.finished.reason == "cancelled"
    harness.fail_all()
    assert second.failed.code == "engine_shutdown"
    assert not harness.engine.has_work
