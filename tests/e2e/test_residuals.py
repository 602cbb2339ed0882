"""Residuals through the API, against plain transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from openai import OpenAI
from safetensors.numpy import load

TEXTS = ["Once upon a time it rained.", "A cat."]


def read(client: OpenAI, **body: Any) -> dict[str, np.ndarray]:
    fields = {"model": "demo", "input": TEXTS, "special_tokens": True, "response_format": "safetensors", **body}
    return load(client.post("/residuals", body=fields, cast_to=bytes))


def hidden_states(oracle: Any, text: str) -> list[np.ndarray]:
    """The embeddings, and the output of each layer but the last, where transformers applies the final norm."""
    ids = torch.tensor([oracle.tokenizer(text)["input_ids"]])
    with torch.no_grad():
        states = oracle.model(ids, output_hidden_states=True).hidden_states
    return [state[0].numpy() for state in states]


def test_residuals_are_those_of_transformers(exact_client: OpenAI, oracle: Any):
    num_layers = oracle.model.config.num_hidden_layers
    sites = [{"layer": layer, "site": kind} for layer in range(num_layers) for kind in ("resid_pre", "resid_post")]
    found = read(exact_client, sites=sites)
    means, lasts = (read(exact_client, sites=sites[:2], pooling=pooling) for pooling in ("mean", "last"))

    assert len(found) == len(TEXTS) * len(sites)
    for number, text in enumerate(TEXTS):
        states = hidden_states(oracle, text)
        for layer in range(num_layers):
            before = found[f"input.{number}.{layer}.resid_pre"]
            np.testing.assert_allclose(before, states[layer], rtol=1e-3, atol=1e-3)
            after = found[f"input.{number}.{layer}.resid_post"]
            if layer + 1 < num_layers:
                np.testing.assert_allclose(after, states[layer + 1], rtol=1e-3, atol=1e-3)
        name = f"input.{number}.0.resid_pre"
        np.testing.assert_allclose(means[name], states[0].mean(axis=0), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(lasts[name], states[0][-1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("steer", [{"profile": "gloomy"}])
def test_steered_residuals_differ_by_the_edit(exact_client: OpenAI, steer: dict[str, Any]):
    site = {"sites": [{"layer": 2}], "special_tokens": False, **steer}
    before, after = (read(exact_client, **site, stage=stage)["input.0.2.resid_post"] for stage in ("pre", "post"))
    assert (np.linalg.norm(after - before, axis=1) > 0.1).all()
