"""Compiled profiles in the engine equal a plain forward hook that decodes the edited activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.engine.loader import LoadedModel, ModelSpec, load_model
from steering.compiler import compile_edits
from steering.saes.loader import load_sae
from steering.saes.sae import SparseAutoencoder
from steering.spec.edit import EditSpec
from tests.builders import build_model
from tests.engine.harness import EngineHarness, reference_tokens
from tests.steering.edits import edit, identity, vector_edit
from tests.steering.sae_files import Array, NumpySAE, random_weights, sae_config, write_sae

PROMPT = tuple(range(3, 12))
NUM_TOKENS = 12
LAYER = 1  # of the hook in the fixtures' configuration
ARCHITECTURES = ("standard", "jumprelu", "topk")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    return load_model(ModelSpec("tiny", build_model(folder), dtype="float32", device="cpu"))


@pytest.fixture(params=ARCHITECTURES)
def config(request, loaded) -> dict[str, object]:
    return sae_config(request.param, d_in=loaded.hidden_size)


def load(config: dict[str, object], folder) -> tuple[SparseAutoencoder, NumpySAE]:
    weights = random_weights(d_in=int(str(config["d_in"])))
    return load_sae(write_sae(folder, config, weights)), NumpySAE(config, weights)


@contextmanager
def hooked(loaded: LoadedModel, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    def hook(module: object, args: object, output: object) -> object:
        hidden = output[0] if isinstance(output, tuple) else output
        assert isinstance(hidden, Tensor)
        changed = change(hidden.reshape(-1, hidden.shape[-1])).reshape(hidden.shape)
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    handle = loaded.module.get_submodule(f"model.layers.{LAYER}").register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def decoded(oracle: NumpySAE, edit_activations: Callable[[Array], None]) -> Callable[[Tensor], Tensor]:
    """``decode(a') + error`` in numpy."""

    def change(hidden: Tensor) -> Tensor:
        h = hidden.detach().numpy().astype(np.float64)
        a = oracle.encode(h)
        edited = a.copy()
        edit_activations(edited)
        return torch.tensor(oracle.decode(edited, h) + h - oracle.decode(a, h), dtype=torch.float32)

    return change


def generate(loaded: LoadedModel, edits: list[EditSpec], *saes: SparseAutoencoder) -> list[int]:
    intervention = compile_edits(edits, {sae.key: sae for sae in saes})
    harness = EngineHarness(loaded)
    return harness.generate(prompt=PROMPT, max_tokens=NUM_TOKENS, intervention=intervention, ignore_eos=True).token_ids


def test_clamp_ablate_scale_and_add(config, loaded, tmp_path):
    sae, oracle = load(config, tmp_path)
    target = identity(sae.key, d_in=loaded.hidden_size)

    def edit_activations(a: Array) -> None:
        a[:, 2], a[:, 5], a[:, 9] = 9.0, 0.0, 3 * a[:, 9] + 4

    edits = [
        edit("clamp", 9.0, index=2, sae=target),
        edit("ablate", index=5, sae=target),
        edit("scale", 3.0, index=9, sae=target),
        edit("add", 4.0, index=9, sae=target),
    ]
    with hooked(loaded, decoded(oracle, edit_activations)):
        expected = reference_tokens(loaded, PROMPT, NUM_TOKENS)
    assert generate(loaded, edits, sae) == expected
    assert expected != reference_tokens(loaded, PROMPT, NUM_TOKENS)


def test_strength_0_is_unsteered(config, loaded, tmp_path):
    sae, _ = load(config, tmp_path)
    target = identity(sae.key, d_in=loaded.hidden_size)
    edits = [edit("add", 0.0, index=3, sae=target), edit("scale", 1.0, index=4, sae=target)]
    assert generate(loaded, edits, sae) == reference_tokens(loaded, PROMPT, NUM_TOKENS)


def test_vector(loaded):
    direction = np.random.default_rng(2).normal(size=loaded.hidden_size)
    with hooked(loaded, lambda h: h + 2 * torch.tensor(direction, dtype=torch.float32)):
        expected = reference_tokens(loaded, PROMPT, NUM_TOKENS)
    assert generate(loaded, [vector_edit(list(direction), 2.0)]) == expected
