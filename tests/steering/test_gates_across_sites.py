"""Gates that read another site than their edit changes, per token or once per prompt, against plain hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inference.engine.messages import ScoresEvent, Scoring
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from inference.interventions import Intervention, Site
from steering.compiler import compile_edits
from steering.composition import followed_by, scaled
from steering.errors import PolicyConflictError
from steering.saes.loader import load_sae
from steering.saes.sae import SparseAutoencoder
from steering.spec.edit import EditSpec, FeatureTarget, GateSpec, VectorTarget
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import parse_edits
from steering.spec.rendering import edits_to_json, fingerprint
from tests.builders import build_model, build_request
from tests.engine.harness import EngineHarness, Transcript
from tests.steering.edits import edit, identity, vector_edit
from tests.steering.reference import Generated, assert_same, generated, hooked, reference
from tests.steering.sae_files import Array, NumpySAE, random_weights, sae_config, write_sae

PROMPT = tuple(range(3, 24))
OTHER_PROMPT = tuple(range(60, 75))
LONG_PROMPT = tuple(5 + 7 * i % 90 for i in range(92))
NUM_TOKENS = 10
EARLY, LATE = Site(0), Site(2)
WIDTH = 32
PUSH = np.random.default_rng(2).normal(size=WIDTH)
PROBE = np.random.default_rng(4).normal(size=WIDTH)
UNIT = PROBE / np.linalg.norm(PROBE)
G = 7


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    return load_model(ModelSpec("tiny", build_model(folder), dtype="float32", device="cpu"))


@pytest.fixture(scope="module", params=["jumprelu", "topk"])
def pair(request, tmp_path_factory) -> tuple[SparseAutoencoder, NumpySAE]:
    config = sae_config(request.param, d_in=WIDTH, **({"k": 20} if request.param == "topk" else {}))
    weights = random_weights(d_in=WIDTH)
    return load_sae(write_sae(tmp_path_factory.mktemp("sae"), config, weights)), NumpySAE(config, weights)


def feature_gate(sae: SparseAutoencoder, threshold: float, site: Site = EARLY, **fields: Any) -> GateSpec:
    target = FeatureTarget(identity(sae.key, site=site, d_in=WIDTH), G)
    return GateSpec(target, threshold, "raw", **fields)


def vector_gate(threshold: float, site: Site = EARLY, **fields: Any) -> GateSpec:
    return GateSpec(VectorTarget(site, tuple(PROBE)), threshold, "raw", **fields)


def push_edit(gate: GateSpec | None, site: Site = LATE, strength: float = 3.0, **fields: Any) -> EditSpec:
    return vector_edit(list(PUSH), strength, site=site, gate=gate, **fields)


def push(h: Array) -> Array:
    return h + 3 * PUSH


# The reference: a hook that reads, and one that acts


@contextmanager
def seeing(loaded: LoadedModel, site: Site) -> Iterator[list[Array]]:
    seen: list[Array] = []

    def look(h: Array) -> Array:
        seen.append(h)
        return h

    with hooked(loaded, site, look):
        yield seen


def gated_reference(
    loaded: LoadedModel, prompt: Sequence[int], is_open: Callable[[list[Array]], Any], change=push, start: int = 0
) -> Generated:
    """transformers' own generation, changed at LATE on tokens for which ``is_open`` of EARLY's residuals is true;
    ``start``: the first place that may be changed.
    """
    with seeing(loaded, EARLY) as seen:

        def acts_on(h: Array) -> Array:
            first = sum(map(len, seen[:-1]))
            allowed = np.arange(first, first + len(h)) >= start
            return np.where((is_open(seen) & allowed)[:, None], change(h), h)

        with hooked(loaded, LATE, acts_on):
            return reference(loaded, prompt, NUM_TOKENS)


def cosines(h: Array) -> Array:
    return h @ UNIT / np.linalg.norm(h, axis=-1)


def run(loaded: LoadedModel, edits: Sequence[EditSpec], saes=(), prompt=PROMPT, **config: Any) -> Generated:
    """The engine with the edits, read back from their JSON."""
    parsed = parse_edits(edits_to_json(edits))
    assert fingerprint(parsed) == fingerprint(edits)
    return generated(transcript_of(loaded, compiled(parsed, saes), prompt, **config))


def compiled(edits: Sequence[EditSpec], saes=()) -> Intervention:
    return compile_edits(edits, {sae.key: sae for sae in saes})


def transcript_of(loaded: LoadedModel, intervention: Intervention, prompt=PROMPT, **config: Any) -> Transcript:
    fields = {"prompt": tuple(prompt), "max_tokens": NUM_TOKENS, "logprobs": 0}
    return EngineHarness(loaded, **config).generate(intervention=intervention, **fields)


def value_between(values: Array) -> float:
    """A threshold that splits the values."""
    ordered = np.sort(values)
    return float(ordered[len(ordered) // 2 - 1 : len(ordered) // 2 + 1].mean())


def prompt_residuals(loaded: LoadedModel, prompt: Sequence[int] = PROMPT) -> Array:
    with seeing(loaded, EARLY) as seen:
        reference(loaded, prompt, 1)
    return seen[0]


# Each token


@pytest.mark.parametrize("side", ["above", "below"])
def test_a_feature_of_an_earlier_layer(loaded, pair, side):
    sae, oracle = pair
    threshold = value_between(oracle.encode(prompt_residuals(loaded))[:, G])
    sign = 1 if side == "above" else -1

    def is_open(seen):
        return sign * oracle.encode(seen[-1])[:, G] > sign * threshold

    expected = gated_reference(loaded, PROMPT, is_open)
    edits = [push_edit(feature_gate(sae, threshold, side=side))]
    assert_same(run(loaded, edits, [sae]), expected)
    assert not np.allclose(expected.logprobs, reference(loaded, PROMPT, NUM_TOKENS).logprobs, atol=1e-3)


@pytest.mark.parametrize("site", [EARLY, LATE], ids=["earlier", "same"])
@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize("measure", ["projection", "cosine"])
def test_a_vector(loaded, measure, side, site):
    of = cosines if measure == "cosine" else (lambda h: h @ UNIT)
    with seeing(loaded, site) as seen:
        reference(loaded, PROMPT, 1)
    threshold, sign = value_between(of(seen[0])), 1 if side == "above" else -1
    with seeing(loaded, site) as seen:

        def change(h: Array) -> Array:
            return np.where((sign * of(seen[-1]) > sign * threshold)[:, None], push(h), h)

        with hooked(loaded, LATE, change):
            expected = reference(loaded, PROMPT, NUM_TOKENS)
    got = run(loaded, [push_edit(vector_gate(threshold, site, measure=measure, side=side))])
    assert_same(got, expected)


def test_a_gate_reads_before_the_edits_of_its_site(loaded, pair):
    """Edits of one site use the same residual; a gate that reads there does so before them too."""
    sae, oracle = pair
    threshold = value_between(oracle.encode(prompt_residuals(loaded))[:, G])
    edits = [push_edit(feature_gate(sae, threshold)), push_edit(None, EARLY, 2.0)]
    open_at: list[Any] = []

    def early(h: Array) -> Array:
        open_at.append(oracle.encode(h)[:, G] > threshold)
        return h + 2 * PUSH

    with (
        hooked(loaded, EARLY, early),
        hooked(loaded, LATE, lambda h: np.where(open_at[-1][:, None], push(h), h)),
    ):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert_same(run(loaded, edits, [sae]), expected)


def test_one_gate_for_several_layers_is_read_once(loaded, pair, monkeypatch):
    sae, oracle = pair
    threshold = value_between(oracle.encode(prompt_residuals(loaded))[:, G])
    calls = []
    original = sae.activations
    monkeypatch.setattr(sae, "activations", lambda h, f: calls.append(len(h)) or original(h, f))
    edits = [push_edit(feature_gate(sae, threshold), Site(layer), 1.0) for layer in (1, 2, 3)]
    with seeing(loaded, EARLY) as seen:

        def change(h: Array) -> Array:
            return np.where((oracle.encode(seen[-1])[:, G] > threshold)[:, None], h + PUSH, h)

        with hooked(loaded, Site(1), change), hooked(loaded, Site(2), change), hooked(loaded, Site(3), change):
            expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert_same(run(loaded, edits, [sae]), expected)
    assert calls == [len(PROMPT), *[1] * (NUM_TOKENS - 1)]


# Once per prompt


def prompt_value(loaded: LoadedModel, kind: str, scope: str, oracle: NumpySAE, prompt=PROMPT) -> float:
    h = prompt_residuals(loaded, prompt)
    chosen = h[1:] if scope == "prompt_mean" else h[-1:]  # without the first token, an attention sink
    if kind == "feature":
        return float(oracle.encode(chosen)[:, G].mean())
    mean = chosen.mean(axis=0, keepdims=True)
    return float((cosines(mean) if kind == "cosine" else mean @ UNIT)[0])


def prompt_gate(kind: str, scope: str, sae: SparseAutoencoder, threshold: float, **fields: Any) -> GateSpec:
    if kind == "feature":
        return feature_gate(sae, threshold, scope=scope, **fields)
    return vector_gate(threshold, scope=scope, measure=kind, **fields)


KINDS = ["feature", "projection", "cosine"]


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
@pytest.mark.parametrize("scope", ["prompt_mean", "prompt_last"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_decision_of_the_prompt_holds_for_the_answer(loaded, pair, kind, scope, is_open):
    sae, oracle = pair
    value = prompt_value(loaded, kind, scope, oracle)
    threshold = value - 0.01 if is_open else value + 0.01
    edits = [push_edit(prompt_gate(kind, scope, sae, threshold), phase="from_last_prompt_token")]
    start = len(PROMPT) - 1
    expected = gated_reference(loaded, PROMPT, lambda seen: np.full(len(seen[-1]), is_open), start=start)
    for config in ({}, {"max_prefill_tokens": 4}):
        assert_same(run(loaded, edits, [sae], **config), expected)
    below = [push_edit(prompt_gate(kind, scope, sae, threshold, side="below"), phase="from_last_prompt_token")]
    opposite = gated_reference(loaded, PROMPT, lambda seen: np.full(len(seen[-1]), not is_open), start=start)
    assert_same(run(loaded, below, [sae]), opposite)
    assert not np.allclose(expected.logprobs, opposite.logprobs, atol=1e-3)


def test_a_decision_for_generated_tokens_only(loaded, pair):
    """Of a prompt whose last token decides, which itself stays as it was; with one of each scope."""
    sae, oracle = pair
    last, mean = (prompt_value(loaded, "projection", scope, oracle) for scope in ("prompt_last", "prompt_mean"))
    gates = [vector_gate(last - 0.01, scope="prompt_last"), vector_gate(mean + 0.01, scope="prompt_mean")]
    edits = [push_edit(gates[0], phase="generation"), push_edit(gates[1], Site(3), phase="generation")]
    expected = gated_reference(loaded, PROMPT, lambda seen: np.full(len(seen[-1]), True), start=len(PROMPT))
    assert_same(run(loaded, edits, [sae]), expected)


def test_special_tokens_do_not_decide(loaded):
    h = prompt_residuals(loaded)
    special = frozenset({PROMPT[0], PROMPT[4]})
    kept = np.delete(h, [0, 4], axis=0) @ UNIT
    for is_open in (True, False):
        gate = vector_gate(float(kept.mean()) + (-0.001 if is_open else 0.001), scope="prompt_mean")
        edits = [push_edit(gate, phase="from_last_prompt_token")]
        got = generated(transcript_of(loaded, compile_edits(edits, {}, special)))
        where = np.full(1, is_open)
        assert_same(got, gated_reference(loaded, PROMPT, lambda _, w=where: w, start=len(PROMPT) - 1))


def test_a_prompt_without_a_token_that_counts_closes_the_gate(loaded):
    for side in ("above", "below"):
        gate = vector_gate(-1e5 if side == "above" else 1e5, side=side, scope="prompt_mean")
        edits = [push_edit(gate, phase="from_last_prompt_token")]
        assert_same(run(loaded, edits, prompt=PROMPT[:1]), reference(loaded, PROMPT[:1], NUM_TOKENS))


# In the engine


def mixed_edits(sae: SparseAutoencoder) -> list[Intervention | None]:
    from_last: dict[str, Any] = {"phase": "from_last_prompt_token"}
    lists = [
        [push_edit(feature_gate(sae, 0.3))],
        [push_edit(vector_gate(0.0, measure="cosine"))],
        [push_edit(vector_gate(-1e3, scope="prompt_mean"), **from_last)],
        [push_edit(vector_gate(1e3, scope="prompt_mean"), **from_last)],
        [push_edit(feature_gate(sae, -1.0, scope="prompt_last"), **from_last), push_edit(None, Site(1), 1.0)],
        [push_edit(None, EARLY, 2.0)],
        [edit("clamp", 4.0, sae=identity(sae.key, site=LATE, d_in=WIDTH), gate=feature_gate(sae, 0.1))],
    ]
    return [None, *(compiled(edits, [sae]) for edits in lists)]


def add_all(harness: EngineHarness, interventions, prompt=LONG_PROMPT, **fields: Any) -> list[Transcript]:
    fields = {"max_tokens": NUM_TOKENS, "logprobs": 0, **fields}
    return [harness.add(prompt=prompt, intervention=each, **fields) for each in interventions]


def assert_alike(got: Sequence[Transcript], expected: Sequence[Transcript]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert_same(generated(one), generated(other))


CONFIGS: dict[str, dict[str, Any]] = {
    "chunks": {"max_prefill_tokens": 16},
    "drafts": {"speculative_method": "prompt_lookup", "prompt_lookup_min": 1, "min_speculative_gain": 0.0},
    "no prefix cache": {"prefix_cache": False, "kv_cache_backend": "contiguous"},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_mixed_batch_is_each_request_alone(loaded, pair, config):
    """Each twice, so that the second one finds the prompt in the cache."""
    sae, _ = pair
    alone = [EngineHarness(loaded, prefix_cache=False).generate(
        prompt=LONG_PROMPT, max_tokens=NUM_TOKENS, logprobs=0, intervention=each
    ) for each in mixed_edits(sae)]  # fmt: skip
    harness = EngineHarness(loaded, **config)
    for _ in range(2):
        got = add_all(harness, mixed_edits(sae))
        harness.run()
        assert_alike(got, alone)
    assert len({tuple(one.token_ids) for one in alone}) >= 6, "the cases differ"
    if config.get("prefix_cache", True):
        assert harness.engine.cache_counts.found > 0


def test_a_preempted_sequence_keeps_its_decision(loaded, pair):
    """Memory for five blocks, and three sequences that grow beyond the end of one."""
    sae, _ = pair
    chosen = mixed_edits(sae)[2:5]
    prompts = [tuple(range(3 + i, 32 + i)) for i in range(3)]
    harness = EngineHarness(loaded, kv_cache_backend="paged", kv_cache_bytes=64 * 1024, max_prefill_tokens=16)
    fields = {"max_tokens": 40, "logprobs": 0}
    got = [harness.add(prompt=p, intervention=i, **fields) for p, i in zip(prompts, chosen, strict=True)]
    harness.run()
    assert harness.engine.num_preemptions > 0
    alone = [
        EngineHarness(loaded).generate(prompt=p, intervention=i, **fields) for p, i in zip(prompts, chosen, strict=True)
    ]
    assert_alike(got, alone)


def test_an_undecided_mean_runs_the_whole_prompt_again(loaded):
    from_last: dict[str, Any] = {"phase": "from_last_prompt_token"}
    mean, last = (compiled([push_edit(vector_gate(0.0, scope=s), **from_last)]) for s in ("prompt_mean", "prompt_last"))
    harness = EngineHarness(loaded)
    first = harness.generate(prompt=LONG_PROMPT, max_tokens=2)
    assert first.finished.usage.cached_tokens == 0
    cached = [harness.generate(prompt=LONG_PROMPT, max_tokens=2, intervention=each) for each in (mean, last)]
    assert [one.finished.usage.cached_tokens for one in cached] == [0, 64]


def test_receipts_count_closed_gates_too(loaded):
    from_last: dict[str, Any] = {"phase": "from_last_prompt_token"}
    for threshold, share in ((-1e3, 1.0), (1e3, 0.0)):
        for scope, fields, num_tokens in (("token", {}, len(PROMPT) + 4), ("prompt_mean", from_last, 5)):
            gate = vector_gate(threshold, scope=scope)
            got = EngineHarness(loaded).generate(
                prompt=PROMPT, max_tokens=5, intervention=compiled([push_edit(gate, **fields)])
            )
            receipt = got.finished.receipt
            assert receipt is not None
            assert receipt.expected == receipt.applied == num_tokens
            (effect,) = receipt.effects
            assert (effect.site, effect.num_tokens, effect.num_changed) == (LATE, num_tokens, share * num_tokens)


@pytest.mark.parametrize("scope", ["token", "prompt_mean"])
def test_a_scored_continuation_is_gated(loaded, scope):
    """Its first tokens run in one step with the last one of the prompt."""
    phase = "both" if scope == "token" else "from_last_prompt_token"
    intervention = compiled([push_edit(vector_gate(-1e3, scope=scope), phase=phase)])
    always = compiled([push_edit(None, phase=phase)])
    scores = []
    for each in (intervention, always):
        request = build_request(prompt=PROMPT, max_tokens=0, intervention=each)
        request = replace(request, scoring=Scoring(OTHER_PROMPT))
        harness = EngineHarness(loaded)
        transcript = harness.add(request)
        harness.run()
        assert transcript.finished.receipt is not None
        scores.append([value for e in transcript.events if isinstance(e, ScoresEvent) for value in e.logprobs])
    np.testing.assert_allclose(*scores, atol=1e-5)


def test_static_steps_equal_ordinary_ones(loaded, pair):
    """The way of CUDA graphs, replayed on the CPU."""
    from tests.engine.test_accelerator import accelerated

    sae, _ = pair
    harness, captured = EngineHarness(loaded), EngineHarness(loaded, accelerate=accelerated())
    alike = []
    for each in (harness, captured):
        got = add_all(each, mixed_edits(sae), prompt=PROMPT, max_tokens=16)
        each.run()
        got += [each.generate(prompt=PROMPT, max_tokens=16, logprobs=0, intervention=i) for i in mixed_edits(sae)]
        alike.append(got)
    assert_alike(*alike)
    assert captured.engine.graphs is not None
    assert captured.engine.graphs.num_captured > 1


# Composition


def test_a_scaled_edit_keeps_its_gates(loaded, pair):
    sae, oracle = pair
    threshold = value_between(oracle.encode(prompt_residuals(loaded))[:, G])
    whole = scaled(compiled([push_edit(feature_gate(sae, threshold))], [sae]), 0.5)

    def is_open(seen):
        return oracle.encode(seen[-1])[:, G] > threshold

    expected = gated_reference(loaded, PROMPT, is_open, lambda h: h + 1.5 * PUSH)
    assert_same(generated(transcript_of(loaded, whole)), expected)


def test_a_policy_reads_what_the_profile_makes_of_the_earlier_site(loaded):
    profile = compiled([push_edit(None, EARLY, 2.0)])
    policy = compiled([push_edit(vector_gate(0.2))])
    open_at: list[Any] = []

    def early(h: Array) -> Array:
        open_at.append((h + 2 * PUSH) @ UNIT > 0.2)
        return h + 2 * PUSH

    with hooked(loaded, EARLY, early), hooked(loaded, LATE, lambda h: np.where(open_at[-1][:, None], push(h), h)):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert_same(generated(transcript_of(loaded, followed_by(profile, policy))), expected)


def test_a_policy_that_reads_what_depends_on_another_site_is_refused(pair):
    sae, _ = pair
    late = identity(sae.key, site=LATE, d_in=WIDTH)
    cap = compiled([edit("at_most", 0.5, sae=late)], [sae])
    gated = compiled([push_edit(vector_gate(0.2))])
    with pytest.raises(PolicyConflictError, match=r"reads the residual at layer 2 \(resid_post\)"):
        followed_by(gated, cap)
    on_prompt = compiled([push_edit(vector_gate(0.2, scope="prompt_mean"), phase="generation")])
    with pytest.raises(PolicyConflictError, match=r"decided on the prompt's residual at layer 0"):
        followed_by(compiled([push_edit(None, EARLY)]), on_prompt)
    followed_by(compiled([push_edit(None, EARLY, phase="generation")]), on_prompt)
    followed_by(cap, gated)
    many = [
        compiled([push_edit(vector_gate(n + k / 10, scope="prompt_mean"), phase="generation") for n in range(2)])
        for k in range(2)
    ]
    with pytest.raises(PolicyConflictError, match="more than 3 gates"):
        followed_by(*many)


# Validation


@pytest.mark.parametrize(
    ("gate", "fields", "message"),
    [
        (vector_gate(0.1, Site(3)), {}, "edits[0].gate.vector: The gate must be at the edit's site, layer 2 "),
        (vector_gate(0.1, Site(2, "resid_post")), {"site": Site(2, "mlp_out")}, "edits[0].gate.vector: The gate must"),
        (vector_gate(0.1, scope="prompt_mean"), {}, "edits[0].gate.scope: A gate with the scope `prompt_mean` needs"),
        (vector_gate(0.1, scope="prompt_last"), {"phase": "prompt"}, "edits[0].gate.scope: A gate with the scope"),
        (replace(vector_gate(0.1), unit="max_act"), {}, "edits[0].gate.unit: A gate on a projection supports raw, "),
        (replace(vector_gate(0.1), unit="resid_norm"), {}, "edits[0].gate.unit: The unit `resid_norm` needs"),
        (replace(vector_gate(0.1, measure="cosine"), unit="resid_norm"), {}, "edits[0].gate.unit: A gate on a cosine"),
        (GateSpec(VectorTarget(EARLY, (0.0,) * 4), 0.1, "raw"), {}, "edits[0].gate.vector.values: The vector must"),
    ],
)
def test_gates_that_cannot_be(gate, fields, message):
    with pytest.raises(InvalidSpecError) as caught:
        parse_edits(edits_to_json([push_edit(gate, **fields)]))
    assert [str(problem)[: len(message)] for problem in caught.value.problems] == [message]


def test_gates_with_both_of_two_fields_are_refused():
    (whole,) = edits_to_json([push_edit(vector_gate(0.1))])
    for field_name, value, problem in (
        ("below", 0.2, "edits[0].gate.below: Expected either `above` or `below`, got both."),
        ("feature", {}, "edits[0].gate: Expected either `feature` or `vector`, got both."),
    ):
        with pytest.raises(InvalidSpecError) as caught:
            parse_edits([whole | {"gate": whole["gate"] | {field_name: value}}])
        assert problem in [str(each) for each in caught.value.problems]


def test_at_most_three_gates_are_decided_by_the_prompt():
    edits = [
        push_edit(vector_gate(n / 10, scope="prompt_mean"), Site(layer), phase="generation")
        for layer in (1, 2)
        for n in range(3)
    ]
    assert len(compiled(parse_edits(edits_to_json(edits))).prompt_gates) == 3
    edits.append(push_edit(vector_gate(0.9, scope="prompt_mean"), phase="generation"))
    with pytest.raises(InvalidSpecError, match="at most 3 different gates"):
        parse_edits(edits_to_json(edits))


def test_everything_about_a_gate_is_in_the_fingerprint(pair):
    sae, _ = pair
    gates = [
        feature_gate(sae, 0.5), feature_gate(sae, 0.5, LATE), feature_gate(sae, 0.5, side="below"), vector_gate(0.5),
        feature_gate(sae, 0.5, Site(1)), vector_gate(0.5, measure="cosine"), vector_gate(0.5, Site(1)),
        vector_gate(0.5, scope="prompt_mean"), vector_gate(0.5, scope="prompt_last"), vector_gate(0.6),
    ]  # fmt: skip
    prints = {fingerprint([push_edit(gate, phase="generation")]) for gate in gates}
    assert len(prints) == len(gates)


def test_the_engine_refuses_a_gate_of_a_later_site(loaded):
    (late_edit,) = compiled([push_edit(vector_gate(0.1))]).edits
    wrong = Intervention("wrong", (replace(late_edit, site=Site(0, "resid_pre")),))
    transcript = EngineHarness(loaded).add(prompt=PROMPT, intervention=wrong)
    assert transcript.failed.code == "sae_mismatch"
    assert "is computed after the edit at layer 0 (resid_pre)" in transcript.failed.message
