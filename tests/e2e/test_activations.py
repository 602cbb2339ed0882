"""Reading through the API, against plain transformers with a hook, and the SAE's own encoder."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import openai
import pytest
from openai import OpenAI

TEXT = "Once upon a time it rained, and the cat ran home."
MESSAGES: list[Any] = [{"role": "user", "content": "Tell me a story."}]


def read(client: OpenAI, **body: Any) -> dict[str, Any]:
    return client.post("/features/activations", body={"model": "demo", **body}, cast_to=dict[str, Any])


def check(tokens: list[dict[str, Any]], expected: np.ndarray, count: int) -> None:
    """Each token's features are the strongest that the oracle found, strongest first."""
    for token in tokens:
        a = expected[token["place"]]
        values = [feature["value"] for feature in token["features"]]
        wanted = np.sort(a)[::-1][:count]
        np.testing.assert_allclose(values, wanted[wanted > 0], rtol=1e-3, atol=1e-3)
        indices = [feature["index"] for feature in token["features"]]
        np.testing.assert_allclose(a[indices], values, rtol=1e-3, atol=1e-3)


def test_texts(exact_client, oracle):
    ids = oracle.tokenizer(TEXT)["input_ids"]
    body, few = (
        read(exact_client, input=given, top_k=5, special_tokens=True) for given in ([TEXT, "A cat."], [ids[:5]])
    )

    assert (body["sae"], body["site"], body["stage"]) == ("demo-sae", "resid_post", "post")
    first, second = body["data"][0]["tokens"], few["data"][0]["tokens"]
    assert [one["index"] for one in body["data"]] == [0, 1]
    assert [token["id"] for token in first] == ids
    assert "".join(token["token"] for token in first).endswith(TEXT)
    assert {token["phase"] for token in first} == {"prompt"}
    check(first, oracle.activations(ids, body["layer"]), 5)
    check(second, oracle.activations(ids[:5], body["layer"]), 5)
    assert any(feature["label"] for token in first for feature in token["features"])
    assert body["usage"]["completion_tokens"] == 0
    assert "millm" not in body


def test_some_features_in_ranges_of_a_chat_and_what_the_model_says(exact_client, oracle):
    body = read(exact_client, messages=MESSAGES, features=[3, 0], max_tokens=6, ranges=[[2, 4], [6, None]])

    tokens = body["data"][0]["tokens"]
    prompt = body["usage"]["prompt_tokens"]
    specials = set(oracle.tokenizer.all_special_ids)
    rendered = oracle.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    written = [token["id"] for token in tokens if token["phase"] == "completion"]
    ids = [*rendered, *written]
    assert [token["place"] for token in tokens] == [
        place for place in [2, 3, *range(6, prompt + 5)] if ids[place] not in specials
    ]
    assert all([feature["index"] for feature in token["features"]] == [3, 0] for token in tokens)
    expected = oracle.activations(ids, body["layer"])
    for token in tokens:
        values = [feature["value"] for feature in token["features"]]
        np.testing.assert_allclose(values, expected[token["place"], [3, 0]], rtol=1e-3, atol=1e-3)
    assert body["data"][0]["completion"]


def test_before_and_after_steering(exact_client):
    steering = {"features": [{"index": 7, "operation": "clamp", "strength": 20, "unit": "raw"}]}
    wish = {"input": TEXT, "features": [7], "steering": steering}
    plain, before, after = (
        read(exact_client, **fields)
        for fields in ({**wish, "steering": None}, {**wish, "stage": "pre"}, {**wish, "stage": "post"})
    )

    def values(body: dict[str, Any]) -> list[float]:
        return [token["features"][0]["value"] for token in body["data"][0]["tokens"]]

    np.testing.assert_allclose(values(before), values(plain), rtol=1e-3, atol=1e-3)
    assert np.mean(values(after)) > np.mean(values(before)) + 1
    assert after["millm"]["steering"]["applied"] == after["millm"]["steering"]["expected"] > 0


@pytest.mark.parametrize("wish", [True, {"top_k": 3, "phase": "completion"}, {"features": [1, 2], "stage": "pre"}])
@pytest.mark.parametrize("profile", [None, "gloomy"])
def test_a_streamed_chat_tells_what_a_whole_one_tells(exact_client, wish, profile):
    extra = {"profile": profile, "return_activations": wish}
    fields: dict[str, Any] = {
        "model": "demo",
        "messages": MESSAGES,
        "max_tokens": 12,
        "temperature": 0,
        "n": 2,
        "extra_body": extra,
    }
    whole = exact_client.chat.completions.create(**fields)
    chunks = [chunk.to_dict() for chunk in exact_client.chat.completions.create(stream=True, **fields)]

    streamed = [one for chunk in chunks for one in chunk.get("millm", {}).get("activations", [])]
    told: Any = whole.to_dict()["millm"]
    assert sorted(streamed, key=lambda one: (one["index"], one["place"])) == told["activations"]
    assert sum("activations" in chunk.get("millm", {}) for chunk in chunks) > 5
    assert not any("activations" in str(choice) for chunk in chunks for choice in chunk["choices"])
    assert ("fingerprint" in told) == (profile is not None)
    assert ("fingerprint" in chunks[-1].get("millm", {})) == (profile is not None)
    assert {one["index"] for one in told["activations"]} == {0, 1}
    prompts = [one["place"] for one in told["activations"] if one["phase"] == "prompt" and one["index"] == 1]
    assert prompts == [], "the choices share their prompt"


def test_a_chat_is_read_as_the_plain_model_computes_it(exact_client, oracle):
    answer: Any = exact_client.chat.completions.create(
        model="demo",
        messages=MESSAGES,
        max_tokens=10,
        temperature=0,
        extra_body={"return_activations": {"special_tokens": True, "top_k": 4}},
    ).to_dict()
    tokens = answer["millm"]["activations"]

    assert [token["place"] for token in tokens] == list(range(len(tokens)))
    assert len(tokens) == answer["usage"]["total_tokens"] - 1, "the last token is not run"
    check(tokens, oracle.activations([token["id"] for token in tokens], 2), 4)


def test_completions(exact_client):
    fields: dict[str, Any] = {"model": "demo", "prompt": [TEXT, "The sun"], "max_tokens": 5, "temperature": 0}
    extra = {"return_activations": {"phase": "completion", "special_tokens": True}, "ignore_eos": True}
    whole: Any = exact_client.completions.create(**fields, extra_body=extra).to_dict()
    chunks = [chunk.to_dict() for chunk in exact_client.completions.create(stream=True, **fields, extra_body=extra)]

    streamed: list[Any] = [one for chunk in chunks for one in chunk.get("millm", {}).get("activations", [])]
    assert sorted(streamed, key=lambda one: (one["index"], one["place"])) == whole["millm"]["activations"]
    assert [token["index"] for token in whole["millm"]["activations"]] == [0] * 4 + [1] * 4
    assert "millm" not in exact_client.completions.create(**fields).to_dict()


@pytest.mark.parametrize(
    ("wish", "param", "code"),
    [
        ({"sae": "none"}, "sae", "sae_not_found"),
        ({"sae": "a\0b"}, "sae", "sae_not_found"),
        ({"features": [10**6]}, "features", "invalid_feature"),
        ({"features": []}, "features", "invalid_value"),
        ({"features": [-1]}, "features[0]", "invalid_value"),
        ({"features": [1], "top_k": 2}, "top_k", "invalid_value"),
        ({"top_k": 101}, "top_k", "invalid_value"),
        ({"ranges": [[3, 3]]}, "ranges[0]", "invalid_value"),
        ({"ranges": [[0, 10**30]]}, None, None),
        ({"ranges": [[0]]}, "ranges[0]", "invalid_value"),
        ({"stage": "during"}, "stage", "invalid_value"),
        ({"phase": "answer"}, "phase", "invalid_value"),
    ],
)
def test_bad_wishes(exact_client, wish, param, code):
    prefix = "return_activations."
    for path, send in {
        "": lambda: read(exact_client, input=TEXT, **wish),
        prefix: lambda: exact_client.chat.completions.create(
            model="demo", messages=MESSAGES, max_tokens=2, extra_body={"return_activations": wish}
        ),
    }.items():
        if param is None:
            send()
            continue
        with pytest.raises(openai.APIStatusError) as caught:
            send()
        assert (caught.value.param, caught.value.code) == (path + param, code)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "invalid_value"),
        ({"input": TEXT, "messages": MESSAGES}, "input", "invalid_value"),
        ({"input": ["x"] * 129}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_prompt"),
        ({"input": [[10**6]]}, "input", "invalid_prompt"),
        ({"input": TEXT, "phase": "completion"}, "max_tokens", "invalid_value"),
        ({"input": TEXT, "max_tokens": 100_000}, "max_tokens", "invalid_value"),
        ({"input": "a b " * 4000}, "input", "context_length_exceeded"),
        ({"input": TEXT, "stream": True}, "stream", "unsupported_parameter"),
        ({"prompt": TEXT}, "prompt", "unsupported_parameter"),
        ({"input": TEXT, "profile": "nope"}, "profile", "profile_not_found"),
        ({"input": ["a b c d e f g h"] * 128, "top_k": 100, "max_tokens": 300}, "top_k", "reading_too_large"),
    ],
)
def test_bad_requests(exact_client, body, param, code):
    with pytest.raises(openai.APIStatusError) as caught:
        read(exact_client, **body)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_directions_and_probes_are_products_with_the_residual(exact_client, oracle):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, oracle.model.config.hidden_size)).astype(np.float32) / 10
    packed = base64.b64encode(values[1].tobytes()).decode()
    directions = [
        {"name": "plain", "layer": 2, "values": values[0].tolist()},
        {"layer": 1, "site": "mlp_in", "values": packed, "bias": 0.25},
        {"name": "probe", "layer": 2, "values": packed, "bias": -0.5, "sigmoid": True},
    ]
    body = read(exact_client, input=TEXT, directions=directions, max_tokens=3, special_tokens=True)
    fields = {"model": "demo", "input": TEXT, "max_tokens": 3, "special_tokens": True}
    sites = [{"layer": 2}, {"layer": 1, "site": "mlp_in"}]
    residuals = exact_client.post("/residuals", body={**fields, "sites": sites}, cast_to=dict[str, Any])
    h, mlp_in = (np.array(one["values"]) for one in residuals["data"][0]["residuals"])

    assert (body["sae"], body["layer"], body["site"]) == (None, None, None)
    assert body["directions"] == [
        {"name": "plain", "layer": 2, "site": "resid_post"},
        {"name": None, "layer": 1, "site": "mlp_in"},
        {"name": "probe", "layer": 2, "site": "resid_post"},
    ]
    (text,) = body["data"]
    assert [token["place"] for token in text["tokens"]] == residuals["data"][0]["positions"]
    assert all(token["features"] == [] for token in text["tokens"])
    expected = [h @ values[0], mlp_in @ values[1] + 0.25, 1 / (1 + np.exp(-(h @ values[1] - 0.5)))]
    found = np.array([token["directions"] for token in text["tokens"]])
    np.testing.assert_allclose(found, np.array(expected).T, rtol=1e-3, atol=1e-3)

    both = read(exact_client, input=TEXT, directions=directions[:1], top_k=2, special_tokens=True)
    assert both["sae"] == "demo-sae"
    assert all(len(token["features"]) <= 2 and len(token["directions"]) == 1 for token in both["data"][0]["tokens"])


@pytest.mark.parametrize(
    ("direction", "param", "text"),
    [
        ({"layer": 2}, "directions[0]", "needs `set` or `values`"),
        ({"layer": 2, "values": [1.0]}, "directions[0].values", "has 1 values, but the model has"),
        ({"layer": 99, "values": [1.0]}, "directions[0].layer", "The model has layers 0 to"),
        ({"set": "nothing"}, "directions[0].set", "no vector set 'nothing'"),
        ({"layer": 2, "values": [1.0], "sigmoid": 1}, "directions[0].sigmoid", "must be true or false"),
    ],
)
def test_wrong_directions_are_named(exact_client, direction, param, text):
    with pytest.raises(openai.BadRequestError) as caught:
        read(exact_client, input=TEXT, directions=[direction])
    assert caught.value.param == param
    assert text in str(caught.value)
