"""Neuronpedia's library against this server, and its answers against those of /v1."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

from millm_site.env import PROJECT_DIR
from tests.clients.environment import Report, pins, python_of, run_command, run_python

SAE = "demo-sae"
TEXT = "The sea was calm and the little boat was happy."
CHAT = [{"role": "user", "content": "Tell me a story."}]
SAMPLING = {"temperature": 0.7, "max_tokens": 16, "frequency_penalty": 0.5, "seed": 11}


def ask(site: str, path: str, body: Any = None) -> Any:
    url = f"{site}/v1/{path}"
    answer = httpx2.get(url, timeout=300) if body is None else httpx2.post(url, json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def native(site: str) -> dict[str, Any]:
    """A labelled feature that is active on the text."""
    read = {"model": "demo", "input": TEXT, "sae": SAE, "top_k": 100}
    tokens = ask(site, "features/activations", read)["data"][0]["tokens"]
    found = [(one["value"], one["index"]) for token in tokens for one in token["features"] if one["label"]]
    detail: dict[str, Any] = ask(site, f"features/{SAE}/{max(found)[1]}")
    return detail


@pytest.fixture(scope="module")
def source(native: dict[str, Any]) -> str:
    return f"{native['layer']}-{SAE}"


@pytest.fixture(scope="module")
def report(site: str, native: dict[str, Any], source: str) -> Report:
    key = {"USE_LOCALHOST": "true", "NEURONPEDIA_API_KEY": "none"}
    return run_python("neuronpedia", "neuronpedia_client", site, source, str(native["index"]), **key)


def activations(site: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "demo", "input": TEXT, "sae": SAE, "special_tokens": True, **fields}
    tokens: list[dict[str, Any]] = ask(site, "features/activations", body)["data"][0]["tokens"]
    return tokens


def test_one_variable_leads_it_here(report: Report):
    assert pins("neuronpedia")["neuronpedia"] == "1.2.1"
    assert report("local_url") == "http://localhost:3000/api"


def test_a_feature(report: Report, native: dict[str, Any], source: str):
    feature, body = report("feature"), report("sae_feature")
    assert (feature["modelId"], feature["source"], feature["index"]) == ("demo", source, str(native["index"]))
    assert feature["density"] == native["density"]
    assert feature["explanations"][0]["text"] == native["label"]
    assert [one["values"] for one in feature["activations"]] == [one["values"] for one in native["examples"]]
    assert body["maxActApprox"] == native["max_activation"]
    assert body["pos_str"] == [one["token"] for one in native["logit_lens"]["promoted"]]
    assert body["hookName"] == f"blocks.{native['layer']}.hook_{native['site']}"


def test_activations_of_a_feature(report: Report, native: dict[str, Any], site: str):
    tokens = activations(site, features=[native["index"]])[1:]  # without the BOS token
    found, several = report("activation"), report("activations")
    assert found["tokens"] == [one["token"] for one in tokens]
    assert found["values"] == pytest.approx([one["features"][0]["value"] for one in tokens], rel=1e-6)
    assert max(found["values"]) > 0
    assert several[0]["values"] == pytest.approx(found["values"], rel=1e-6)
    assert len(several) == 2


def test_activations_of_all_features(report: Report, site: str):
    tokens = activations(site, top_k=100)
    expected = {
        (place, one["index"]): one["value"] for place, token in enumerate(tokens) for one in token["features"] if place
    }
    first = report("source")[0]
    assert first["tokens"] == [one["token"] for one in tokens]
    found = {(place, int(name)): value for name, pairs in first["activeFeatures"].items() for place, value in pairs}
    assert found == pytest.approx(expected, rel=1e-6)


def test_searches_by_text(report: Report):
    pairs = report("source")[0]["activeFeatures"]
    highest = sorted(pairs, key=lambda name: -max(value for _, value in pairs[name]))[:5]
    sums = {name: sum(value for place, value in pairs[name] if place in {2, 3}) for name in pairs}
    found = report("search")
    assert [one["index"] for one in found["by_maximum"]] == highest
    assert [one["index"] for one in found["by_sum"]] == sorted(sums, key=lambda name: -sums[name])[:5]
    for one in found["by_maximum"]:
        assert {place: value for place, value in enumerate(one["values"]) if value} == dict(pairs[one["index"]])
    assert [len(each) for each in report("search_texts")] == [3, 3]


def test_the_strongest_features_of_each_token(report: Report, site: str):
    tokens = activations(site, top_k=4, special_tokens=False)
    found = report("top_by_token")
    assert [token for _, token, _ in found["one"]] == [one["token"] for one in tokens]
    for (place, _, tops), token in zip(found["one"], tokens, strict=True):
        assert place == token["place"]
        assert dict(tops) == pytest.approx({one["index"]: one["value"] for one in token["features"]}, rel=1e-6)
    assert found["lengths"][0] == len(tokens)


def edit(native: dict[str, Any]) -> dict[str, Any]:
    edit = {"sae": SAE, "index": native["index"], "strength": 3.0, "unit": "raw"}
    return {"features": [{**edit, "special_tokens": True, "sink_tokens": True}]}


def test_steering_a_text(report: Report, native: dict[str, Any], site: str):
    body = {"model": "demo", "prompt": TEXT, "logprobs": 5, **SAMPLING}
    default, steered = ask(site, "completions", body), ask(site, "completions", {**body, "steering": edit(native)})
    found = report("steer")
    assert found["DEFAULT"] == TEXT + default["choices"][0]["text"]
    assert found["STEERED"] == TEXT + steered["choices"][0]["text"]
    assert found["STEERED"] != found["DEFAULT"]
    logprobs = steered["choices"][0]["logprobs"]
    assert [one["token"] for one in found["steeredLogProbs"]] == logprobs["tokens"]
    assert [one["logprob"] for one in found["steeredLogProbs"]] == pytest.approx(logprobs["token_logprobs"], abs=1e-4)
    assert found["shareUrl"].startswith(f"{site}/admin/")


def test_steering_a_chat(report: Report, native: dict[str, Any], site: str):
    body = {"model": "demo", "messages": CHAT, **SAMPLING}
    found = report("steer_chat")
    for name, fields in (("DEFAULT", {}), ("STEERED", {"steering": edit(native)})):
        text = ask(site, "chat/completions", {**body, **fields})["choices"][0]["message"]["content"]
        assert found[name]["chatTemplate"] == [*CHAT, {"role": "assistant", "content": text}]
        assert CHAT[0]["content"] in found[name]["raw"]
        assert text in found[name]["raw"]
    assert found["STEERED"] != found["DEFAULT"]


def test_errors_are_the_library_s_own(report: Report):
    *missing, index, long, empty, wrong = report("errors")
    assert missing == [["HTTPError", "Resource not found: 404"]] * 3
    for (kind, message), words in ((index, "must be 0 to"), (long, "context"), (empty, "defaultChatMessages")):
        assert kind == "HTTPError"
        assert "Request failed with status 400: {'message'" in message
        assert words in message
    assert wrong[0] == "NPUnauthorizedError"


def test_the_example_of_the_page(site: str):
    page = (PROJECT_DIR / "docs" / "neuronpedia.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    command = [str(python_of("neuronpedia")), "-c", program.replace("http://127.0.0.1:8000", site)]
    output = run_command(command, {"NEURONPEDIA_API_KEY": "none"}, PROJECT_DIR)
    assert re.search(r"^label: .*sea", output, re.MULTILINE), output
    assert re.search(r"^most active on: +\S", output, re.MULTILINE), output
    assert re.search(r"^steered: Once upon a time\b.+", output, re.MULTILINE), output
