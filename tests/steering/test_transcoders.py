"""Transcoders in the engine: read before the MLP, written behind it, as circuit-tracer's hooks do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from inference.captures import CaptureSpec, FeatureValues, TopFeatures
from inference.engine.messages import CaptureEvent
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from inference.interventions import Intervention, Site, VectorEdit
from steering.compiler import compile_edits
from steering.composition import followed_by
from steering.saes.architectures import TopKTranscoder
from steering.saes.loader import load_sae
from steering.saes.sae import SparseAutoencoder
from steering.spec.edit import EditSpec, FeatureTarget, GateSpec, SiteTarget
from tests.builders import build_model
from tests.engine.harness import EngineHarness
from tests.steering.edits import edit, identity, vector_edit
from tests.steering.reference import assert_same, generated, hooked, reference
from tests.steering.sae_files import Array, random_weights

PROMPT = tuple(range(3, 12))
NUM_TOKENS = 8
LAYER, WIDTH, F, G = 2, 32, 3, 7
INPUTS = {
    "mlp_in": ("mlp.hook_in", "mlp.hook_out"),
    "mlp_norm": ("ln2.hook_normalized", "hook_mlp_out"),
    "resid_mid": ("hook_resid_mid", "hook_mlp_out"),
}
WEIGHTS = random_weights(d_in=WIDTH)
K = 20


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    loaded = load_model(ModelSpec("tiny", build_model(tmp_path_factory.mktemp("model")), dtype="float32", device="cpu"))
    norm: Any = loaded.module.get_submodule(f"model.layers.{LAYER}.post_attention_layernorm")
    with torch.no_grad():
        norm.weight.copy_(torch.rand(WIDTH, generator=torch.Generator().manual_seed(1)) + 0.5)
    return loaded


@pytest.fixture(scope="module", params=["transcoder", "jumprelu_transcoder", "topk_transcoder"])
def architecture(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def load(architecture, tmp_path_factory) -> Callable[[str], SparseAutoencoder]:
    def made(kind: str) -> SparseAutoencoder:
        folder = tmp_path_factory.mktemp("transcoder")
        hook, out = (f"blocks.{LAYER}.{name}" for name in INPUTS[kind])
        saved = "transcoder" if architecture == "topk_transcoder" else architecture
        config = {"architecture": saved, "d_in": WIDTH, "d_out": WIDTH, "d_sae": 40, "dtype": "float32"}
        config |= {"apply_b_dec_to_input": False, "normalize_activations": "none"}
        metadata = {"hook_name": hook, "hook_name_out": out, "sae_lens_version": "6.54.0"}
        (folder / "cfg.json").write_text(json.dumps({**config, "metadata": metadata}))
        names = set(WEIGHTS) - (set() if saved.startswith("jump") else {"threshold"})
        tensors = {name: torch.tensor(WEIGHTS[name], dtype=torch.float32) for name in names}
        save_file(tensors, folder / "sae_weights.safetensors")
        sae = load_sae(folder)
        if architecture != "topk_transcoder":
            return sae
        top = TopKTranscoder("topk", replace(sae.math, architecture="topk_transcoder", k=K), sae.weights)
        top.input_kind = sae.input_kind
        return top

    return made


def encode(x: Array, architecture: str) -> Array:
    pre = x @ WEIGHTS["W_enc"] + WEIGHTS["b_enc"]
    a: Array = np.maximum(pre, 0)
    if architecture == "jumprelu_transcoder":
        a = a * (pre > WEIGHTS["threshold"])
    if architecture == "topk_transcoder":
        a = np.where(pre >= np.sort(pre, axis=-1)[:, [-K]], a, 0)
    return a


def before_mlp(loaded: LoadedModel, kind: str, seen: list[Array]) -> Any:
    """A plain hook that keeps what the transcoder reads, in float64."""
    layer = loaded.module.get_submodule(f"model.layers.{LAYER}")
    norm: Any = layer.post_attention_layernorm

    def keep(_: object, args: Any) -> None:
        h = args[0].detach().double().numpy()[0]
        if kind == "mlp_norm":
            h = h / np.sqrt((h**2).mean(-1, keepdims=True) + norm.variance_epsilon)
        seen.append(h)

    module: Any = layer.mlp if kind == "mlp_in" else norm
    return module.register_forward_pre_hook(keep)


@contextmanager
def transcoded(
    loaded: LoadedModel, kind: str, architecture: str, change: Callable[[Array], Array]
) -> Iterator[list[Array]]:
    """Add ``change(a) W_dec`` to the MLP's output, ``a`` all activations; yields them by step."""
    seen: list[Array] = []
    found: list[Array] = []
    handle = before_mlp(loaded, kind, seen)

    def act(h: Array) -> Array:
        found.append(encode(seen[-1], architecture))
        return h + change(found[-1]) @ WEIGHTS["W_dec"]

    try:
        with hooked(loaded, Site(LAYER, "mlp_out"), act):
            yield found
    finally:
        handle.remove()


def only(feature: int, change: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def of_all(a: Array) -> Array:
        result = np.zeros_like(a)
        result[:, feature] = change(a[:, feature])
        return result

    return of_all


CHANGES: dict[str, tuple[float, Callable[[Array], Array]]] = {
    "add": (2.0, lambda a: np.full_like(a, 2.0)),
    "clamp": (4.0, lambda a: 4.0 - a),
    "scale": (3.0, lambda a: 2 * a),
    "ablate": (0.0, lambda a: -a),
    "at_least": (1.0, lambda a: np.maximum(a, 1.0) - a),
    "at_most": (0.1, lambda a: np.minimum(a, 0.1) - a),
}


def site_of(kind: str) -> Site:
    return Site(LAYER, "mlp_raw" if kind == "mlp_in" else "mlp_out")


def run(loaded: LoadedModel, intervention: Any, **config: Any) -> Any:
    fields: dict[str, Any] = {"max_tokens": NUM_TOKENS, "logprobs": 0}
    return generated(EngineHarness(loaded, **config).generate(prompt=PROMPT, intervention=intervention, **fields))


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("operation", CHANGES)
def test_operation(operation, kind, loaded, load, architecture):
    sae, (strength, change) = load(kind), CHANGES[operation]
    with transcoded(loaded, kind, architecture, only(F, change)):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    target = identity(sae.key, site=site_of(kind), d_in=WIDTH)
    compiled = compile_edits([edit(operation, strength, sae=target)], {sae.key: sae})
    assert_same(run(loaded, compiled), expected)
    assert_same(run(loaded, compiled, max_prefill_tokens=4), expected)


def test_conditions_read_the_activation_too(loaded, load, architecture):
    sae = load("mlp_norm")
    target = identity(sae.key, site=Site(LAYER, "mlp_out"), d_in=WIDTH)
    gate = GateSpec(FeatureTarget(target, G), 0.1, "raw")
    edits = [edit("add", 4.0, sae=target, gate=gate, only_if_active=True)]

    def change(a: Array) -> Array:
        is_open = (a[:, G] > 0.1) & (a[:, F] > 0)
        return only(F, lambda own: np.where(is_open, 4.0, 0.0))(a)

    with transcoded(loaded, "mlp_norm", architecture, change) as found:
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert len({bool(x) for a in found for x in (a[:, G] > 0.1) & (a[:, F] > 0)}) == 2
    assert_same(run(loaded, compile_edits(edits, {sae.key: sae})), expected)


@pytest.mark.parametrize("kind", INPUTS)
def test_captures_are_what_a_hook_encodes(kind, loaded, load, architecture):
    sae = load(kind)
    with transcoded(loaded, kind, architecture, np.zeros_like) as found:
        reference(loaded, PROMPT, 1)
    probes = (FeatureValues(sae, (F, G)), TopFeatures(sae, 2))
    specs = tuple(CaptureSpec(site=sae.read_site(site_of(kind)), probe=probe, phase="prompt") for probe in probes)
    events = EngineHarness(loaded).generate(prompt=PROMPT, max_tokens=1, captures=specs).events
    values = {c.number: c.values for e in events if isinstance(e, CaptureEvent) for c in e.captures}
    np.testing.assert_allclose(values[0], found[0][:, [F, G]], atol=1e-5)
    np.testing.assert_allclose(values[1], -np.sort(-found[0], axis=-1)[:, :2], atol=1e-5)


def test_a_policy_reads_after_edits_of_the_mlps_input(loaded, load, architecture):
    sae, step = load("mlp_in"), np.random.default_rng(1).normal(size=WIDTH)
    cap = compile_edits(
        [edit("at_most", 0.1, sae=identity(sae.key, site=Site(LAYER, "mlp_raw"), d_in=WIDTH))], {sae.key: sae}
    )
    profile = compile_edits([vector_edit(list(step), site=Site(LAYER, "mlp_in"))], {})
    assert isinstance(profile.edits[0], VectorEdit)
    with (
        hooked(loaded, Site(LAYER, "mlp_in"), lambda h: h + step),
        transcoded(loaded, "mlp_in", architecture, only(F, lambda a: np.minimum(a, 0.1) - a)),
    ):
        expected = reference(loaded, PROMPT, NUM_TOKENS)
    assert_same(run(loaded, followed_by(profile, cap)), expected)


def test_an_edit_of_a_site_that_is_only_read_is_refused(loaded):
    wrong = Intervention("wrong", (VectorEdit(site=Site(1, "mlp_norm"), vector=torch.ones(WIDTH)),))
    transcript = EngineHarness(loaded).add(prompt=PROMPT, intervention=wrong)
    assert "is only read" in transcript.failed.message


@pytest.mark.parametrize("kind", ["mlp_in", "mlp_norm"])
def test_a_transcoder_in_the_place_of_its_mlp(kind, loaded, load, architecture):
    sae, seen = load(kind), list[Array]()
    handle = before_mlp(loaded, kind, seen)

    def act(h: Array) -> Array:
        return encode(seen[-1], architecture) @ WEIGHTS["W_dec"] + WEIGHTS["b_dec"]

    try:
        with hooked(loaded, Site(LAYER, "mlp_out"), act):
            expected = reference(loaded, PROMPT, NUM_TOKENS)
    finally:
        handle.remove()
    target = identity(sae.key, site=site_of(kind), d_in=WIDTH)
    replaced = EditSpec(SiteTarget(target.site, sae=target), "reconstruct", sink_tokens=True)
    assert_same(run(loaded, compile_edits([replaced], {sae.key: sae})), expected)
