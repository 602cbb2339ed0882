"""Compiled profiles in the engine equal a plain forward hook with the operation's formula in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from inference.interventions import Site, Window
from steering.compiler import compile_edits
from steering.saes.loader import load_sae
from steering.saes.sae import SparseAutoencoder
from steering.spec.edit import SINK_FACTOR, EditSpec, FeatureTarget, GateSpec, SAEIdentity
from tests.builders import build_model
from tests.engine.harness import EngineHarness
from tests.engine.readers import plain_residuals
from tests.steering.edits import edit, identity, vector_edit
from tests.steering.edits import keep_norm as keep_norm_edit
from tests.steering.reference import Generated, assert_same, generated, hooked, reference, steered
from tests.steering.sae_files import Array, NumpySAE, random_weights, sae_config, write_sae

pytestmark = pytest.mark.slow

PROMPT = tuple(range(3, 12))
NUM_TOKENS = 12
SITE = Site(1)  # the hook in the fixtures' configuration
ARCHITECTURES = ("standard", "jumprelu", "topk")
NORMALIZATIONS = ("none", "constant_norm_rescale", "layer_norm")
F, G = 3, 7  # the edited feature, and the one of the gate
Mask = NDArray[np.bool_]
Where = Callable[[Array], Mask]
VECTOR = np.random.default_rng(2).normal(size=32)
SIMILAR = VECTOR + 0.3 * np.random.default_rng(3).normal(size=32)  # cosine 0.96
SPAN = np.linalg.qr(np.array([VECTOR, SIMILAR]).T)[0]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    return load_model(ModelSpec("tiny", build_model(folder), dtype="float32", device="cpu"))


@pytest.fixture(scope="module")
def plain(loaded) -> Generated:
    return reference(loaded, PROMPT, NUM_TOKENS)


def config_of(architecture: str, **overrides: Any) -> dict[str, Any]:
    """Many features of a TopK SAE are active, so that the ones that are edited often are."""
    return sae_config(architecture, d_in=32, **({"k": 20} if architecture == "topk" else {}), **overrides)


def load(config: dict[str, object], folder) -> tuple[SparseAutoencoder, NumpySAE]:
    weights = random_weights(d_in=int(str(config["d_in"])))
    return load_sae(write_sae(folder, config, weights)), NumpySAE(config, weights)


def unit(v: Array) -> Array:
    return v / np.linalg.norm(v)


def along(h: Array, v: Array, target: Callable[[Array], Array]) -> Array:
    """Moves the projection on the direction."""
    p = h @ unit(v)
    return h + (target(p) - p)[:, None] * unit(v)


def gate_open(a: Array) -> Mask:
    return a[:, G] > 0.4


def active(a: Array) -> Mask:
    return a[:, F] > 0


class Formulas:
    """What each operation does to ``h``, from steering.md."""

    def __init__(self, oracle: NumpySAE) -> None:
        self.oracle = oracle
        self.direction = oracle.weights["W_dec"][F]

    def __getitem__(self, name: str) -> Callable[[Array], Array]:
        return lambda h: FORMULAS[name](self, h)

    def moved(self, h: Array, target: Callable[[Array], Array], where: Where | None = None) -> Array:
        """Decodes the activations with feature F at its target, plus the SAE's error; on tokens ``where`` only."""
        a = self.oracle.encode(h)
        edited = a.copy()
        edited[:, F] = target(a[:, F])
        moved = self.oracle.decode(edited, h) + h - self.oracle.decode(a, h)
        return moved if where is None else self.only(where, h, moved)

    def only(self, where: Where, h: Array, changed: Array) -> Array:
        chosen: Array = np.where(where(self.oracle.encode(h))[:, None], changed, h)
        return chosen


def full(value: float) -> Callable[[Array], Array]:
    return lambda a: np.full_like(a, value)


def keep_norm(f: Formulas, h: Array) -> Array:
    moved = f.moved(h, full(9.0)) + 2 * VECTOR
    kept: Array = moved * np.linalg.norm(h, axis=-1, keepdims=True) / np.linalg.norm(moved, axis=-1, keepdims=True)
    return kept


FORMULAS: dict[str, Callable[[Formulas, Array], Array]] = {
    "add": lambda f, h: f.moved(h, lambda a: a + 4),
    "scale": lambda f, h: f.moved(h, lambda a: 3 * a),
    "clamp": lambda f, h: f.moved(h, full(9.0)),
    "at_least": lambda f, h: f.moved(h, lambda a: np.maximum(a, 5.0)),
    "at_most": lambda f, h: f.moved(h, lambda a: np.minimum(a, 0.3)),
    "ablate": lambda f, h: f.moved(h, np.zeros_like),
    "clamp only if active": lambda f, h: f.moved(h, full(9.0), active),
    "add only if active": lambda f, h: f.moved(h, lambda a: a + 4, active),
    "conditional add": lambda f, h: f.moved(h, lambda a: a + 4, gate_open),
    "conditional clamp only if active": lambda f, h: f.moved(h, full(9.0), lambda a: gate_open(a) & active(a)),
    "orthogonal": lambda f, h: along(h, f.direction, lambda p: -2 * p),
    "orthogonal only if active": lambda f, h: f.only(active, h, along(h, f.direction, lambda p: -2 * p)),
    "projection_cap": lambda f, h: along(h, f.direction, lambda p: np.clip(p, -0.2, 0.5)),
    "conditional projection_cap": lambda f, h: f.only(
        gate_open, h, along(h, f.direction, lambda p: np.minimum(p, -1.5))
    ),
    "vector": lambda f, h: h + 2 * VECTOR,
    "conditional vector": lambda f, h: f.only(gate_open, h, h + 2 * VECTOR),
    "vector orthogonal": lambda f, h: along(h, VECTOR, np.zeros_like),
    "similar vectors orthogonal": lambda f, h: h - h @ SPAN @ SPAN.T,
    "norm_preserving": keep_norm,
}


def edits_of(name: str, sae: SAEIdentity) -> list[EditSpec]:
    gate = GateSpec(FeatureTarget(sae, G), 0.4, "raw")
    vector = list(VECTOR)
    cases: dict[str, list[EditSpec]] = {
        "add": [edit("add", 4.0, sae=sae)],
        "scale": [edit("scale", 3.0, sae=sae)],
        "clamp": [edit("clamp", 9.0, sae=sae)],
        "at_least": [edit("at_least", 5.0, sae=sae)],
        "at_most": [edit("at_most", 0.3, sae=sae)],
        "ablate": [edit("ablate", sae=sae)],
        "clamp only if active": [edit("clamp", 9.0, sae=sae, only_if_active=True)],
        "add only if active": [edit("add", 4.0, sae=sae, only_if_active=True)],
        "conditional add": [edit("add", 4.0, sae=sae, gate=gate)],
        "conditional clamp only if active": [edit("clamp", 9.0, sae=sae, gate=gate, only_if_active=True)],
        "orthogonal": [edit("orthogonal", -2.0, sae=sae)],
        "orthogonal only if active": [edit("orthogonal", -2.0, sae=sae, only_if_active=True)],
        "projection_cap": [edit("projection_cap", 0.5, sae=sae, lower=-0.2)],
        "conditional projection_cap": [edit("projection_cap", -1.5, sae=sae, gate=gate)],
        "vector": [vector_edit(vector, 2.0)],
        "conditional vector": [vector_edit(vector, 2.0, gate=gate)],
        "vector orthogonal": [vector_edit(vector, 0.0, operation="orthogonal")],
        "similar vectors orthogonal": [
            vector_edit(list(one), 0.0, operation="orthogonal") for one in (VECTOR, SIMILAR)
        ],
        "norm_preserving": [vector_edit(vector, 2.0), edit("clamp", 9.0, sae=sae), keep_norm_edit(SITE)],
    }
    return cases[name]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", FORMULAS)
def test_operation(name, architecture, loaded, plain, tmp_path):
    sae, oracle = load(config_of(architecture), tmp_path)
    with hooked(loaded, SITE, Formulas(oracle)[name]):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    got = steered(loaded, edits_of(name, identity(sae.key, d_in=loaded.hidden_size)), [sae], PROMPT, NUM_TOKENS)
    assert_same(got, expected)
    assert not np.allclose(expected.logprobs, plain.logprobs, atol=1e-3), "the case shows nothing"


@pytest.mark.parametrize("normalization", NORMALIZATIONS[1:])
@pytest.mark.parametrize("name", ["add", "scale", "clamp", "conditional add", "norm_preserving"])
def test_operation_of_an_sae_that_normalises(name, normalization, loaded, tmp_path):
    config = config_of("jumprelu", normalize_activations=normalization)
    sae, oracle = load(config, tmp_path)
    with hooked(loaded, SITE, Formulas(oracle)[name]):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    got = steered(loaded, edits_of(name, identity(sae.key, d_in=loaded.hidden_size)), [sae], PROMPT, NUM_TOKENS)
    assert_same(got, expected)


@pytest.mark.parametrize("kind", ["resid_pre", "resid_post", "mlp_raw", "mlp_out", "attn_out"])
@pytest.mark.parametrize("architecture", ["jumprelu", "topk"])
def test_every_site(kind, architecture, loaded, tmp_path):
    sae, oracle = load(config_of(architecture), tmp_path)
    site = Site(2, kind)
    target = identity(sae.key, site=site, d_in=loaded.hidden_size)
    with hooked(loaded, site, Formulas(oracle)["clamp"]):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert_same(steered(loaded, edits_of("clamp", target), [sae], PROMPT, NUM_TOKENS), expected)


def test_several_layers_and_saes_in_one_profile(loaded, tmp_path):
    one, one_oracle = load(config_of("jumprelu"), tmp_path / "1")
    two, two_oracle = load(config_of("topk"), tmp_path / "2")
    late = Site(3, "mlp_out")
    edits = [
        edit("clamp", 9.0, sae=identity(one.key, d_in=32)),
        edit("scale", 2.0, sae=identity(two.key, d_in=32)),
        edit("scale", 3.0, sae=identity(one.key, site=late, d_in=32)),
        vector_edit(list(VECTOR), 2.0, site=late),
    ]
    first, second = Formulas(one_oracle), Formulas(two_oracle)

    def at_layer_1(h: Array) -> Array:
        return first["clamp"](h) + second.moved(h, lambda a: 2 * a) - h

    def at_layer_3(h: Array) -> Array:
        return first["scale"](h) + 2 * VECTOR

    with hooked(loaded, SITE, at_layer_1), hooked(loaded, late, at_layer_3):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert_same(steered(loaded, edits, [one, two], PROMPT, NUM_TOKENS), expected)


def test_a_gate_reads_another_sae(loaded, tmp_path):
    one, one_oracle = load(config_of("jumprelu"), tmp_path / "1")
    two, two_oracle = load(config_of("topk"), tmp_path / "2")
    gate = GateSpec(FeatureTarget(identity(two.key, d_in=32), 5), 0.2, "raw")
    edits = [edit("clamp", 9.0, sae=identity(one.key, d_in=32), gate=gate)]

    def change(h: Array) -> Array:
        return np.where(two_oracle.encode(h)[:, 5:6] > 0.2, Formulas(one_oracle)["clamp"](h), h)

    with hooked(loaded, SITE, change):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert_same(steered(loaded, edits, [one, two], PROMPT, NUM_TOKENS), expected)


# On which tokens

NUM_PROMPT = len(PROMPT)
SCOPES: dict[str, tuple[dict[str, Any], Callable[[int], bool]]] = {
    "prompt": ({"phase": "prompt"}, lambda p: p < NUM_PROMPT),
    "generation": ({"phase": "generation"}, lambda p: p >= NUM_PROMPT),
    "from the last prompt token": ({"phase": "from_last_prompt_token"}, lambda p: p >= NUM_PROMPT - 1),
    "the last prompt token": (
        {"phase": "from_last_prompt_token", "window": Window(0, 1)},
        lambda p: p == NUM_PROMPT - 1,
    ),
    "2 to 5 from the last prompt token": (
        {"phase": "from_last_prompt_token", "window": Window(2, 5)},
        lambda p: NUM_PROMPT + 1 <= p < NUM_PROMPT + 4,
    ),
    "ranges of the prompt": (
        {"phase": "prompt", "ranges": (Window(0, 2), Window(3, 4), Window(5))},
        lambda p: p in {0, 1, 3} or 5 <= p < NUM_PROMPT,
    ),
    "ranges from the last prompt token": (
        {"phase": "from_last_prompt_token", "ranges": (Window(0, 2), Window(4, 6))},
        lambda p: p - NUM_PROMPT + 1 in {0, 1, 4, 5},
    ),
    "all but the first token": ({"sink_tokens": False}, lambda p: p > 0),
    "first 3 of the prompt": ({"phase": "prompt", "window": Window(first=3)}, lambda p: p < 3),
    "after 4 of the prompt": ({"phase": "prompt", "window": Window(4)}, lambda p: 4 <= p < NUM_PROMPT),
    "first 5 generated": (
        {"phase": "generation", "window": Window(first=5)},
        lambda p: NUM_PROMPT <= p < NUM_PROMPT + 5,
    ),
    "after 5 generated": ({"phase": "generation", "window": Window(5)}, lambda p: p >= NUM_PROMPT + 5),
    "2 to 4 of both": (
        {"window": Window(2, 4)},
        lambda p: 2 <= (p if p < NUM_PROMPT else p - NUM_PROMPT) < 4,
    ),
}


@pytest.mark.parametrize("max_prefill_tokens", [2, 256])
@pytest.mark.parametrize("name", SCOPES)
def test_phases_and_windows(name, max_prefill_tokens, loaded, tmp_path):
    sae, oracle = load(config_of("jumprelu"), tmp_path)
    fields, acts = SCOPES[name]
    edits = [
        edit("clamp", 9.0, sae=identity(sae.key, d_in=32), **fields),
        vector_edit(list(VECTOR), 2.0, **fields),
    ]
    with hooked(loaded, SITE, lambda h: Formulas(oracle)["clamp"](h) + 2 * VECTOR, acts):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    got = steered(loaded, edits, [sae], PROMPT, NUM_TOKENS, max_prefill_tokens=max_prefill_tokens)
    assert_same(got, expected)


def with_limit(one: EditSpec, limit: float) -> EditSpec:
    """Leaves tokens alone whose residual is longer."""
    scales = replace(one.target.scales, typical_norm=limit / SINK_FACTOR)
    return replace(one, target=replace(one.target, scales=scales), sink_tokens=False)


@pytest.mark.parametrize("max_prefill_tokens", [2, 256])
def test_residuals_of_attention_sinks_are_left_alone(max_prefill_tokens, loaded, tmp_path):
    """Edits of one site with different limits, one of them with none."""
    sae, oracle = load(config_of("jumprelu"), tmp_path)
    norms = np.linalg.norm(plain_residuals(loaded, list(PROMPT), SITE).numpy(), axis=1)
    low, high = (float(np.quantile(norms, share)) for share in (0.4, 0.8))
    target = identity(sae.key, d_in=32)
    edits = [
        with_limit(edit("clamp", 9.0, sae=target), low),
        with_limit(vector_edit(list(VECTOR), 2.0), high),
        with_limit(vector_edit(list(-VECTOR), 0.5), low),
        vector_edit(list(VECTOR), 0.25),
    ]

    def change(h: Array) -> Array:
        size = np.linalg.norm(h, axis=1, keepdims=True)
        clamped = np.where(size <= low, Formulas(oracle)["clamp"](h) - 0.5 * VECTOR, h)
        return clamped + np.where(size <= high, 2 * VECTOR, 0.0) + 0.25 * VECTOR

    with (
        hooked(loaded, SITE, change, lambda p: p > 0),
        hooked(loaded, SITE, lambda h: h + 0.25 * VECTOR, lambda p: p == 0),
    ):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert_same(steered(loaded, edits, [sae], PROMPT, NUM_TOKENS, max_prefill_tokens=max_prefill_tokens), expected)


def test_a_special_first_token_is_no_sink(loaded):
    """It is left alone as a special token, and edits of special tokens act on it."""
    edits = [vector_edit(list(VECTOR), 2.0, special_tokens=True, sink_tokens=False)]
    with hooked(loaded, SITE, lambda h: h + 2 * VECTOR):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert_same(steered(loaded, edits, [], PROMPT, NUM_TOKENS, special=frozenset({PROMPT[0]})), expected)


def test_a_prompt_of_one_token_from_its_last_one(loaded):
    edits = [vector_edit(list(VECTOR), 2.0, phase="from_last_prompt_token")]
    with hooked(loaded, SITE, lambda h: h + 2 * VECTOR):
        expected = reference(loaded, PROMPT[:1], NUM_TOKENS)
    assert_same(steered(loaded, edits, [], PROMPT[:1], NUM_TOKENS), expected)


@pytest.mark.parametrize(("phase", "is_steered"), [("generation", False), ("from_last_prompt_token", True)])
def test_the_first_generated_token(phase, is_steered, loaded):
    """It is drawn at the last prompt token, which the phase generation leaves alone."""
    plain, got = (
        EngineHarness(loaded).generate(prompt=PROMPT, max_tokens=1, logprobs=0, intervention=one).logprobs[0]
        for one in (None, compile_edits([vector_edit(list(VECTOR), 4.0, phase=phase)], {}))
    )
    assert (got != plain) == is_steered


def test_the_receipt_says_what_changed(loaded, tmp_path):
    """Against the residuals that plain hooks see: how many tokens were changed, and how far on average."""
    sae, oracle = load(config_of("jumprelu"), tmp_path)
    target = identity(sae.key, d_in=32)
    h = plain_residuals(loaded, list(PROMPT), SITE).double().numpy()
    p = h @ unit(oracle.weights["W_dec"][F])
    cap = float(np.median(p)) + 1e-3
    edits = [
        edit("projection_cap", cap, sae=target, phase="prompt"),
        edit("add", 0.0, index=8, sae=target),
        vector_edit([0.0] * 32, 1.0, site=Site(2)),
    ]
    got = EngineHarness(loaded, max_prefill_tokens=3).generate(
        prompt=PROMPT, max_tokens=6, intervention=compile_edits(edits, {sae.key: sae})
    )
    receipt = got.finished.receipt
    assert receipt is not None
    moved = np.maximum(p - cap, 0) / np.linalg.norm(h, axis=1)
    (effect,) = receipt.effects
    assert (effect.site, effect.num_tokens, effect.num_changed) == (SITE, NUM_PROMPT, NUM_PROMPT // 2)
    np.testing.assert_allclose(effect.change, moved.sum(), rtol=1e-4)
    assert [(one.number, one.reason) for one in receipt.inert] == [
        (1, "`add` with 0 changes nothing."), (2, "The vector is zero."),
    ]  # fmt: skip


def test_windows_of_several_edits_overlap(loaded):
    edits = [
        vector_edit(list(VECTOR), 2.0, window=Window(first=4)),
        vector_edit(list(-VECTOR), 1.0, window=Window(2, 6), phase="generation"),
    ]

    def strength(place: int) -> float:
        index = place if place < NUM_PROMPT else place - NUM_PROMPT
        return 2.0 * (index < 4) - 1.0 * (place >= NUM_PROMPT and 2 <= index < 6)

    with (
        hooked(loaded, SITE, lambda h: h + 2 * VECTOR, lambda p: strength(p) == 2.0),
        hooked(loaded, SITE, lambda h: h + VECTOR, lambda p: strength(p) == 1.0),
        hooked(loaded, SITE, lambda h: h - VECTOR, lambda p: strength(p) == -1.0),
    ):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert_same(steered(loaded, edits, [], PROMPT, NUM_TOKENS), expected)


@pytest.mark.parametrize("takes_special", [False, True])
def test_special_tokens_are_left_alone_unless_asked_for(takes_special, loaded):
    special = frozenset({PROMPT[0], PROMPT[4]})
    edits = [vector_edit(list(VECTOR), 2.0, special_tokens=takes_special), vector_edit(list(VECTOR), 1.0)]

    def is_special(place: int) -> bool:
        return place in (0, 4)

    with (
        hooked(loaded, SITE, lambda h: h + 3 * VECTOR, lambda p: not is_special(p)),
        hooked(loaded, SITE, lambda h: h + 2 * VECTOR, lambda p: is_special(p) and takes_special),
    ):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert not special & set(expected.token_ids)
    assert_same(steered(loaded, edits, [], PROMPT, NUM_TOKENS, special=special), expected)


# What must hold


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_strength_0_is_bit_equal_to_unsteered(architecture, loaded, tmp_path):
    sae, _ = load(config_of(architecture), tmp_path)
    target = identity(sae.key, d_in=loaded.hidden_size)
    edits = [
        edit("add", 0.0, index=3, sae=target),
        edit("scale", 1.0, index=4, sae=target),
        edit("orthogonal", 1.0, index=5, sae=target),
        vector_edit(list(VECTOR), 0.0),
        keep_norm_edit(SITE),
    ]
    got = steered(loaded, edits, [sae], PROMPT, NUM_TOKENS)
    alone = EngineHarness(loaded).generate(prompt=PROMPT, max_tokens=NUM_TOKENS, logprobs=0)
    assert got == generated(alone)


def test_all_operations_in_one_batch_equal_each_alone_beside_poison(loaded, tmp_path):
    """Bit by bit where the profile is the only thing that differs in the batch."""
    sae, _ = load(config_of("topk"), tmp_path)
    target = identity(sae.key, d_in=loaded.hidden_size)
    compiled = [compile_edits(edits_of(name, target), {sae.key: sae}) for name in FORMULAS]
    prompts = [tuple(range(3 + i, 10 + 2 * i)) for i in range(len(compiled))]

    def run(poison: float) -> list[Generated]:
        harness = EngineHarness(loaded, max_prefill_tokens=16)
        edits = [edit("clamp", poison, sae=target), vector_edit(list(VECTOR), poison)]
        wild = harness.add(prompt=PROMPT, max_tokens=NUM_TOKENS, intervention=compile_edits(edits, {sae.key: sae}))
        others = [
            harness.add(prompt=prompt, max_tokens=NUM_TOKENS, intervention=one, logprobs=0)
            for prompt, one in zip(prompts, compiled, strict=True)
        ]
        harness.run()
        assert wild.is_ended
        return [generated(one) for one in others]

    together = run(poison=1e-3)
    assert run(poison=1e4) == together
    for prompt, one, got in zip(prompts, compiled, together, strict=True):
        alone = EngineHarness(loaded).generate(prompt=prompt, max_tokens=NUM_TOKENS, intervention=one, logprobs=0)
        assert_same(got, generated(alone))


LONG = tuple(3 + i % 60 for i in range(70))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"phase": "prompt"},
        {"phase": "generation"},
        {"phase": "from_last_prompt_token"},
        {"phase": "from_last_prompt_token", "window": Window(first=5)},
        {"phase": "from_last_prompt_token", "ranges": (Window(0, 1), Window(3, 20))},
        {"phase": "prompt", "ranges": (Window(2, 8), Window(20, 50))},
        {"sink_tokens": False},
        {"phase": "prompt", "window": Window(first=20)},
        {"phase": "generation", "window": Window(4, 20)},
        {"window": Window(10, 40)},
        {"special_tokens": True},
    ],
    ids=str,
)
def test_prefix_cache_on_equals_off(fields, loaded):
    """The second turn's prompt holds the first one's answer, under the same profile, another one and none."""
    special = frozenset({5, 6})
    mine = compile_edits([vector_edit(list(VECTOR), 0.7, **fields)], {}, special)
    other = compile_edits([vector_edit(list(VECTOR), 0.7, phase="prompt", window=Window(first=30))], {}, special)

    def conversation(*, prefix_cache: bool) -> list[Generated]:
        harness = EngineHarness(loaded, prefix_cache=prefix_cache, max_prefill_tokens=32)
        turns: list[Generated] = []
        for intervention in (mine, None, other, mine):
            first = harness.generate(prompt=LONG, max_tokens=40, intervention=intervention, logprobs=0)
            more = (*LONG, *first.token_ids, 9, 8, 7)
            second = harness.generate(prompt=more, max_tokens=10, intervention=intervention, logprobs=0)
            third = harness.generate(prompt=more, max_tokens=10, intervention=mine, logprobs=0)
            turns += [generated(first), generated(second), generated(third)]
            assert prefix_cache or not second.finished.usage.cached_tokens
            assert not prefix_cache or second.finished.usage.cached_tokens
        return turns

    for got, expected in zip(conversation(prefix_cache=True), conversation(prefix_cache=False), strict=True):
        assert_same(got, expected)


def test_the_receipt_counts_what_windows_and_special_tokens_leave(loaded):
    special = frozenset({PROMPT[1]})
    edits = [
        vector_edit(list(VECTOR), 0.1, window=Window(first=4)),
        vector_edit(list(VECTOR), 0.1, phase="generation", window=Window(3), site=Site(2)),
        vector_edit(list(VECTOR), 0.1, phase="prompt", special_tokens=True, site=Site(0, "mlp_out")),
    ]
    harness = EngineHarness(loaded)
    got = harness.generate(prompt=PROMPT, max_tokens=8, intervention=compile_edits(edits, {}, special))
    receipt = got.finished.receipt
    assert receipt is not None
    assert not special & set(got.token_ids)
    # The last token generated is never run through the model, so 7 of them are.
    assert receipt.applied == receipt.expected == (4 - 1) + 4 + (7 - 3) + NUM_PROMPT
