"""Logit lenses and attributions of the client against a live server, compared with plain transformers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch

from millm import Millm, Site
from tests.e2e.oracle import Oracle

TEXT = "Once upon a time it rained, and the fox was"


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


def expected(oracle: Oracle, ids: list[int], token: int, layer: int) -> tuple[np.ndarray, float]:
    """Activations times gradients ``[tokens, features]`` through transformers' model, and the metric."""
    seen: list[torch.Tensor] = []
    scales = torch.zeros(len(ids), oracle.sae.d_sae, requires_grad=True)

    def add(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(output[0].detach())
        return output + scales @ oracle.sae.weights.W_dec

    hook = oracle.model.model.layers[layer].register_forward_hook(add)
    logits = oracle.model(torch.tensor([ids])).logits[0, -1]
    hook.remove()
    metric = logits[token] - logits.mean()
    (gradient,) = torch.autograd.grad(metric, scales)
    return (oracle.sae.encode(seen[0]) * gradient).numpy(), float(metric.detach())


def test_attribution_is_that_of_transformers(m: Millm, oracle: Oracle, tmp_path: Path) -> None:
    found = m.attribution(TEXT, max_nodes=5000, graph=tmp_path / "graph.json")
    ids = oracle.tokenizer(TEXT)["input_ids"]
    assert list(found.token_ids) == ids
    reference, metric = expected(oracle, ids, found.token_id, found.layer)
    assert found.raw["skipped_positions"] == [0]
    assert np.abs(reference[0]).max() > 0
    reference[0] = 0
    values = np.zeros_like(reference)
    for node in found.features:
        values[node.position, node.index] = node.attribution
    np.testing.assert_allclose(values, reference, rtol=1e-2, atol=1e-3 * np.abs(reference).max())
    assert found.value == pytest.approx(metric, abs=1e-3)
    parts = sum(node.attribution for node in found.features) + found.other + found.errors.sum() + found.biases.sum()
    assert parts == pytest.approx(found.total, rel=1e-4)
    best = next(iter(found.by_feature()))
    assert f"#{best}" in str(found)

    graph = json.loads((tmp_path / "graph.json").read_text())
    kinds = [node["feature_type"] for node in graph["nodes"]]
    assert kinds.count("cross layer transcoder") == len(found.features)
    assert kinds.count("mlp reconstruction error") == kinds.count("embedding") == len(ids)
    names = [node["node_id"] for node in graph["nodes"]]
    assert len(set(names)) == len(names)
    assert {end for link in graph["links"] for end in (link["source"], link["target"])} <= set(names)
    (logit,) = [node for node in graph["nodes"] if node["is_target_logit"]]
    assert logit["token_prob"] == pytest.approx(math.exp(found.logprob))
    assert graph["metadata"]["prompt_tokens"] == list(found.tokens)


def test_a_token_of_a_steered_answer(m: Millm) -> None:
    prompt = m.openai.post("tokenize", body={"model": "demo", "prompt": TEXT}, cast_to=object)["tokens"]  # type: ignore[index]
    answer = m.openai.post("tokenize", body={"model": "demo", "prompt": " sad and alone."}, cast_to=object)["tokens"]  # type: ignore[index]
    steered, plain = (
        m.attribution(prompt, completion_ids=answer, position=len(prompt), profile=profile)
        for profile in ("gloomy", None)
    )
    assert steered.receipt is not None
    assert plain.receipt is None
    assert steered.token_id == plain.token_id == answer[1]
    assert steered.value != pytest.approx(plain.value, abs=1e-3)
    assert len(steered.tokens) == len(prompt) + 1


def test_contrast_and_token_text(m: Millm) -> None:
    by_text, by_id = (m.attribution(TEXT, token=token, contrast=" happy") for token in (" sad", None))
    assert by_text.token == " sad"
    assert by_text.raw["contrast"]["token"] == " happy"
    assert by_text.value != by_id.value


def test_the_last_layer_of_the_lens_is_the_model(m: Millm, oracle: Oracle) -> None:
    lens = m.logit_lens(TEXT, top_k=3)
    ids = oracle.tokenizer(TEXT)["input_ids"]
    with torch.no_grad():
        logprobs = oracle.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert len(lens) == len(ids)
    for place, one in enumerate(lens.positions):
        last = one.layers[-1]
        assert last.token_ids == tuple(logprobs[place].topk(3).indices.tolist())
        np.testing.assert_allclose(last.logprobs, logprobs[place].topk(3).values, atol=1e-3)
        if place + 1 < len(ids):
            assert last.next_logprob == pytest.approx(float(logprobs[place, ids[place + 1]]), abs=1e-3)
    assert repr(lens[0].layers[0].tokens[0]) in str(lens)
    some = m.logit_lens(TEXT, layers=[0], ranges=[(2, 4)], top_k=1, profile="gloomy")
    assert [one.position for one in some.positions] == [2, 3]
    assert [layer.layer for layer in some[0].layers] == [0]
    assert some.receipt is not None


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": []}, "input", None),
        ({"input": [10**6]}, "input", "invalid_prompt"),
        ({"position": 99}, "position", "invalid_value"),
        ({"token": 10**6}, "token", None),
        ({"token": "two words"}, "token", "invalid_value"),
        ({"contrast": " sad", "metric": "logprob"}, "metric", "invalid_value"),
        ({"sae": "other"}, "sae", "sae_not_found"),
        ({"max_nodes": 0}, "max_nodes", "invalid_value"),
        ({"input": "rain " * 600}, "position", "reading_too_large"),
        ({"max_tokens": 3}, "max_tokens", "unsupported_parameter"),
    ],
)
def test_bad_attributions(m: Millm, fields: dict[str, Any], param: str, code: str | None) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        m.openai.post("attribution", body={"model": "demo", "input": TEXT, **fields}, cast_to=object)
    body = caught.value.body
    assert isinstance(body, dict)
    assert body["param"] == param, body
    assert code is None or body["code"] == code, body


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"layers": [99]}, "layers"), ({"ranges": [[500, 600]]}, "ranges"), ({"layers": [1, 1]}, "layers")],
)
def test_bad_lenses(m: Millm, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        m.openai.post("logit_lens", body={"model": "demo", "input": TEXT, **fields}, cast_to=object)
    assert caught.value.param == param


def test_position_zero_has_only_itself(m: Millm) -> None:
    found = m.attribution(TEXT, position=0)
    assert found.features == (), "SAEs are not trained on first tokens"
    assert found.errors.tolist() == pytest.approx([found.total])
    assert Site(found.layer, found.site).site == "resid_post"
