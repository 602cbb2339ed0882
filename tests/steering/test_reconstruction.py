"""Residuals that are replaced by an SAE's reconstruction, against plain hooks in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from inference.interventions import Site
from steering.compiler import compile_edits
from steering.composition import followed_by, scaled
from steering.errors import PolicyConflictError
from steering.saes.loader import load_sae
from steering.saes.sae import SparseAutoencoder
from steering.spec.edit import EditSpec, FeatureTarget, GateSpec, SiteTarget
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import parse_edits
from steering.spec.rendering import edits_to_json, fingerprint
from steering.spec.wording import describe_edit
from tests.builders import build_model
from tests.engine.harness import EngineHarness
from tests.engine.test_accelerator import accelerated
from tests.steering.edits import edit, identity, keep_norm, vector_edit
from tests.steering.reference import assert_same, generated, hooked, reference, steered
from tests.steering.sae_files import Array, NumpySAE, random_weights, sae_config, write_sae

PROMPT = tuple(range(3, 12))
NUM_TOKENS = 8
SITE, WIDTH, F, G = Site(1), 32, 3, 7


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    return load_model(ModelSpec("tiny", build_model(folder), dtype="float32", device="cpu"))


@pytest.fixture(scope="module", params=["jumprelu", "topk", "layer_norm"])
def pair(request, tmp_path_factory) -> tuple[SparseAutoencoder, NumpySAE]:
    is_topk = request.param == "topk"
    normalization = "layer_norm" if request.param == "layer_norm" else "none"
    extra = {"k": 20} if is_topk else {}
    architecture = "topk" if is_topk else "jumprelu"
    config = sae_config(architecture, d_in=WIDTH, normalize_activations=normalization, **extra)
    weights = random_weights(d_in=WIDTH)
    return load_sae(write_sae(tmp_path_factory.mktemp("sae"), config, weights)), NumpySAE(config, weights)


def reconstruct(sae: SparseAutoencoder, **fields: Any) -> EditSpec:
    target = SiteTarget(SITE, sae=identity(sae.key, site=SITE, d_in=WIDTH))
    return EditSpec(target, "reconstruct", unit="raw", sink_tokens=True, **fields)


def decoded(oracle: NumpySAE, change: Callable[[Array], None] = lambda a: None) -> Callable[[Array], Array]:
    def act(h: Array) -> Array:
        a = oracle.encode(h)
        change(a)
        return oracle.decode(a, h)

    return act


def test_the_error_is_gone(loaded, pair):
    sae, oracle = pair
    with hooked(loaded, SITE, decoded(oracle)):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert_same(steered(loaded, [reconstruct(sae)], [sae], PROMPT, NUM_TOKENS), expected)
    assert not np.allclose(expected.logprobs, reference(loaded, PROMPT, NUM_TOKENS).logprobs, atol=1e-3)


def test_with_edits_of_features_it_decodes_the_changed_activations(loaded, pair):
    sae, oracle = pair
    target = identity(sae.key, site=SITE, d_in=WIDTH)

    def change(a: Array) -> None:
        a[:, F], a[:, G] = 4.0, 0.0

    with hooked(loaded, SITE, decoded(oracle, change)):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    edits = [reconstruct(sae), edit("clamp", 4.0, sae=target), edit("ablate", sae=target, index=G)]
    assert_same(steered(loaded, edits, [sae], PROMPT, NUM_TOKENS), expected)


def test_conditions_and_the_norm(loaded, pair):
    sae, oracle = pair
    gate = GateSpec(FeatureTarget(identity(sae.key, site=SITE, d_in=WIDTH), G), 0.3, "raw")

    def act(h: Array) -> Array:
        is_open = oracle.encode(h)[:, [G]] > 0.3
        new = np.where(is_open, decoded(oracle)(h), h)
        return new * np.linalg.norm(h, axis=-1, keepdims=True) / np.linalg.norm(new, axis=-1, keepdims=True)

    with hooked(loaded, SITE, act, lambda place: place >= len(PROMPT) - 1):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    phase: dict[str, Any] = {"phase": "from_last_prompt_token"}
    edits = [reconstruct(sae, gate=gate, **phase), keep_norm(SITE, **phase)]
    assert_same(steered(loaded, edits, [sae], PROMPT, NUM_TOKENS), expected)


def test_half_of_it(loaded, pair):
    sae, oracle = pair
    with hooked(loaded, SITE, lambda h: (h + decoded(oracle)(h)) / 2):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    half = scaled(compile_edits([reconstruct(sae)], {sae.key: sae}), 0.5)
    got = EngineHarness(loaded).generate(prompt=PROMPT, max_tokens=NUM_TOKENS, logprobs=0, intervention=half)
    assert_same(generated(got), expected)


def test_in_a_batch_and_in_static_steps(loaded, pair):
    sae, _ = pair
    target = identity(sae.key, site=SITE, d_in=WIDTH)
    lists = [[reconstruct(sae)], [vector_edit([1.0] * WIDTH, site=SITE)], [edit("clamp", 4.0, sae=target)]]
    lists.append([reconstruct(sae), edit("clamp", 4.0, sae=target)])
    profiles = [None, *(compile_edits(edits, {sae.key: sae}) for edits in lists)]
    fields: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 16, "logprobs": 0}
    alone = [EngineHarness(loaded).generate(intervention=each, **fields) for each in profiles]
    for harness in (EngineHarness(loaded), EngineHarness(loaded, accelerate=accelerated())):
        together = [harness.add(intervention=each, **fields) for each in profiles]
        harness.run()
        for one, other in zip(together, alone, strict=True):
            assert_same(generated(one), generated(other))
    assert harness.engine.graphs is not None
    assert harness.engine.graphs.num_captured > 0


def test_a_cap_reads_the_reconstruction(loaded, pair):
    sae, oracle = pair
    if sae.is_normalized:
        pytest.skip("policies cannot use it")
    cap = compile_edits([edit("at_most", 0.1, sae=identity(sae.key, site=SITE, d_in=WIDTH))], {sae.key: sae})

    def act(h: Array) -> Array:
        new = decoded(oracle)(h)
        a = oracle.encode(new)[:, [F]]
        return new + (np.minimum(a, 0.1) - a) * oracle.weights["W_dec"][F]

    with hooked(loaded, SITE, act):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    profile = compile_edits([reconstruct(sae)], {sae.key: sae})
    both = followed_by(profile, cap)
    got = EngineHarness(loaded).generate(prompt=PROMPT, max_tokens=NUM_TOKENS, logprobs=0, intervention=both)
    assert_same(generated(got), expected)
    with pytest.raises(PolicyConflictError, match="cannot replace a residual"):
        followed_by(cap, profile)


def test_json_words_and_problems(pair):
    sae, _ = pair
    edits = [reconstruct(sae, phase="prompt")]
    whole = edits_to_json(edits)
    assert parse_edits(whole) == tuple(edits)
    assert describe_edit(edits[0]) == (
        "residual at layer 1 (resid_post): replace by the reconstruction of tiny-sae, prompt only, attention sinks too"
    )
    assert fingerprint(edits) != fingerprint([keep_norm(SITE, phase="prompt")])
    place = whole[0]["site"]
    for site, operation, problem in (
        ({"layer": 1}, "reconstruct", "edits[0].site.sae: `reconstruct` needs the SAE of the site."),
        (place, "norm_preserving", "edits[0].site.sae: Only `reconstruct` has an SAE."),
        (
            {**place, "layer": 2},
            "reconstruct",
            "edits[0].site.sae: The SAE is at layer 1 (resid_post), but",
        ),
        (place, "add", "edits[0].operation: `norm_preserving` and `reconstruct` must have a site as their target"),
    ):
        with pytest.raises(InvalidSpecError) as caught:
            parse_edits([whole[0] | {"site": site, "operation": operation}])
        assert str(caught.value.problems[0]).startswith(problem)
    with pytest.raises(InvalidSpecError, match="is listed twice"):
        parse_edits(whole * 2)
