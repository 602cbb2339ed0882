"""Residuals through the API, against plain transformers."""

from __future__ import annotations

import base64
from typing import Any

import httpx2 as httpx
import numpy as np
import openai
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


ENDPOINTS: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2},
    "/completions": {"prompt": "Once", "max_tokens": 2},
    "/responses": {"input": "Hi.", "max_output_tokens": 16, "store": False},
    "/messages": {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2},
    "/features/activations": {"input": "Once upon", "top_k": 1},
    "/residuals": {"input": "Once upon", "sites": [{"layer": 2}], "pooling": "last"},
    "/decisions": {"input": "Hi.", "questions": [{"type": "predicate", "name": "sad", "instructions": "Sad?"}]},
}


def test_inline_vectors_steer_every_endpoint(exact_client: OpenAI, oracle: Any):
    values = np.linspace(-1, 1, oracle.model.config.hidden_size, dtype=np.float32)
    vector = {"layer": 2, "values": base64.b64encode(values.tobytes()).decode(), "strength": 0.5, "sink_tokens": True}
    fingerprints = set()
    for path, body in ENDPOINTS.items():
        fields = {"model": "demo", "steering": {"vectors": [vector]}, **body}
        answer = exact_client.post(path, body=fields, cast_to=httpx.Response)
        assert answer.headers["x-millm-profile"] == "inline", path
        fingerprints.add(answer.headers["x-millm-steering"])
    assert len(fingerprints) == 1

    site = {"sites": [{"layer": 2}], "special_tokens": False, "steering": {"vectors": [vector]}}
    before, after = (read(exact_client, **site, stage=stage)["input.0.2.resid_post"] for stage in ("pre", "post"))
    np.testing.assert_allclose(after - before, np.broadcast_to(0.5 * values, before.shape), atol=1e-3)


def test_inline_vectors_that_do_not_fit_name_their_field(exact_client: OpenAI):
    wrong = {"vectors": [{"layer": 2, "values": [1.0, 2.0]}]}
    with pytest.raises(openai.BadRequestError, match="has 2 values, but the model has") as caught:
        read(exact_client, sites=[{"layer": 2}], steering=wrong)
    assert caught.value.param == "steering.vectors[0].values"
