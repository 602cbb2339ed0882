"""POST /v1/residuals over a fake engine: formats, limits and refusals."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load

from inference.captures import ActivationCapture, CaptureSpec, Span
from inference.client import CaptureEvent, Event, GenerationRequest
from inference.interventions import Site
from openai_api.residuals import endpoint
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import BOS, TURN, failing, finished, tokens_of
from tests.openai_api.test_openapi import validator

SITES = [{"layer": 1}, {"layer": 2, "site": "resid_pre"}]


def value_at(site: Site, place: int) -> list[float]:
    return [site.layer + place / 8, place, -1.5, 0.1]


def reading(request: GenerationRequest) -> Iterable[Event]:
    """Residuals that tell their site and place; the last generated token is never read."""
    tokens = tokens_of(request, "ab")[: request.sampling.max_tokens]
    ids = [*request.prompt_token_ids, *(event.token_ids[0] for event in tokens)]
    last = len(ids) - (1 if tokens else 0)
    captures = [_capture(n, spec, ids[:last], request) for n, spec in enumerate(request.captures)]
    found = tuple(capture for capture in captures if capture is not None)
    return [*tokens, *([CaptureEvent(request.index, found)] if found else []), finished(request, len(tokens))]


def _capture(number: int, spec: CaptureSpec, ids: list[int], request: GenerationRequest) -> ActivationCapture | None:
    places = endpoint.selected_places(spec, ids, len(request.prompt_token_ids))
    if not places:
        return None
    values = np.array([value_at(spec.site, place) for place in places], np.float32)
    if spec.pooling == "none":
        return ActivationCapture(number, len(places), values, tuple(places))
    pooled = {"mean": values.mean(axis=0), "max": values.max(axis=0), "last": values[-1]}[spec.pooling]
    return ActivationCapture(number, len(places), pooled[None])


@pytest.fixture
def residuals(api: Api) -> Any:
    api.engine.script = reading

    async def post(headers: dict[str, str] | None = None, /, **fields: Any) -> Any:
        if "messages" not in fields:
            fields = {"input": "hey", **fields}
        return await api.post("/v1/residuals", {"model": "tiny", "sites": SITES, **fields}, **(headers or {}))

    return post


async def content_of(response: Any) -> bytes:
    assert response.status_code == 200, response.content
    assert response.headers["Content-Type"] == "application/octet-stream"
    return b"".join([part async for part in response.streaming_content])


def expected(site: Site, places: Iterable[int]) -> np.ndarray:
    return np.array([value_at(site, place) for place in places], np.float32)


async def test_json_has_the_residuals_of_each_input_and_site(api: Api, residuals: Any):
    body = (await residuals(input=["hey", "you!"])).json()

    validator("ResidualsBody").validate(body)
    assert (body["model"], body["stage"], body["pooling"]) == ("tiny", "post", "none")
    assert [one["positions"] for one in body["data"]] == [[0, 1, 2], [0, 1, 2, 3]]
    assert body["data"][1]["token_ids"] == list(b"you!")
    first, second = body["data"][0]["residuals"]
    assert (first["layer"], first["site"], first["shape"]) == (1, "resid_post", [3, 4])
    assert (second["layer"], second["site"]) == (2, "resid_pre")
    np.testing.assert_array_equal(np.array(second["values"], np.float32), expected(Site(2, "resid_pre"), range(3)))
    assert "millm" not in body
    assert body["usage"]["prompt_tokens"] == 7
    assert api.log.only.endpoint == "/v1/residuals"
    assert api.log.only.prompt == ["hey", "you!"]
    assert not api.log.only.tokens
    assert api.log.only.parameters["sites"] == SITES


async def test_the_three_formats_have_the_same_values(residuals: Any):
    fields: dict[str, Any] = {"input": ["hey", "you!"], "profile": "gloomy"}
    numbers, text = [(await residuals(**fields, encoding_format=encoding)).json() for encoding in ("float", "base64")]
    tensors = await content_of(await residuals(**fields, response_format="safetensors"))
    arrays = np.load(io.BytesIO(await content_of(await residuals(**fields, response_format="npz"))), allow_pickle=False)

    loaded = load(tensors)
    metadata = json.loads(str(arrays["metadata"]))
    for one, coded in zip(numbers["data"], text["data"], strict=True):
        for site, packed in zip(one["residuals"], coded["residuals"], strict=True):
            name = f"input.{one['index']}.{site['layer']}.{site['site']}"
            values = np.array(site["values"], np.float32)
            np.testing.assert_array_equal(loaded[name], values)
            np.testing.assert_array_equal(arrays[name], values)
            unpacked = np.frombuffer(base64.b64decode(packed["values"]), "<f4").reshape(packed["shape"])
            np.testing.assert_array_equal(unpacked, values)
        assert arrays[f"input.{one['index']}.token_ids"].tolist() == one["token_ids"]
        assert arrays[f"input.{one['index']}.positions"].tolist() == one["positions"]
    assert len(loaded) == 4
    assert metadata["token_ids"] == [one["token_ids"] for one in numbers["data"]]
    assert metadata["millm"] == numbers["millm"]
    assert (metadata["format"], metadata["format_version"]) == ("millm.residuals", 1)


async def test_the_header_of_safetensors_describes_the_answer(residuals: Any, tmp_path: Any):
    response = await residuals(input=["hey", "you!"], response_format="safetensors", max_tokens=2)
    path = tmp_path / "answer.safetensors"
    path.write_bytes(await content_of(response))

    with safe_open(path, "numpy") as opened:
        metadata = opened.metadata()
    assert (metadata["model"], metadata["pooling"], metadata["stage"]) == ("tiny", "none", "post")
    assert json.loads(metadata["token_ids"]) == [list(b"heyab"), list(b"you!ab")]
    assert json.loads(metadata["positions"]) == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert json.loads(metadata["completions"]) == ["ab", "ab"]
    assert json.loads(metadata["usage"])["completion_tokens"] == 4


@pytest.mark.parametrize("pooling", ["mean", "max", "last"])
async def test_pooled_is_one_vector_for_each_input(api: Api, residuals: Any, pooling: str):
    body = (await residuals(pooling=pooling, ranges=[[1, None]], max_tokens=2)).json()

    (one,) = body["data"]
    assert one["positions"] == ([3] if pooling == "last" else [1, 2, 3])
    values = expected(Site(1), [1, 2, 3])
    pooled = {"mean": values.mean(axis=0), "max": values.max(axis=0), "last": values[-1]}[pooling]
    assert one["residuals"][0]["shape"] == [4]
    np.testing.assert_allclose(one["residuals"][0]["values"], pooled, rtol=1e-6)
    assert {spec.pooling for spec in api.engine.requests[0].captures} == {pooling}


async def test_the_selection_of_tokens_reaches_the_engine(api: Api, residuals: Any):
    messages = [{"role": "user", "content": "hi"}]
    options = {"stage": "pre", "phase": "prompt", "ranges": [[0, 3]], "special_tokens": True}
    body = (await residuals(messages=messages, **options)).json()

    spec = api.engine.requests[0].captures[0]
    assert (spec.stage, spec.phase, spec.spans, spec.skip_token_ids) == ("pre", "prompt", (Span(0, 3),), frozenset())
    assert body["data"][0]["token_ids"][0] == BOS
    assert body["data"][0]["positions"] == [0, 1, 2]
    plain = (await residuals(messages=messages)).json()
    ids = plain["data"][0]["token_ids"]
    assert {ids[place] for place in plain["data"][0]["positions"]}.isdisjoint({BOS, TURN})


async def test_no_token_is_an_empty_tensor(residuals: Any):
    body = (await residuals(ranges=[[50, None]])).json()
    assert body["data"][0]["positions"] == []
    assert body["data"][0]["residuals"][0]["shape"] == [0, 4]
    tensors = load(await content_of(await residuals(ranges=[[50, None]], response_format="safetensors")))
    assert tensors["input.0.1.resid_post"].shape == (0, 4)
    pooled = (await residuals(phase="completion", max_tokens=1, pooling="mean")).json()
    assert pooled["data"][0]["residuals"][0] == {"layer": 1, "site": "resid_post", "shape": [0], "values": []}


async def test_steering_is_applied_and_told(api: Api, residuals: Any):
    response = await residuals({"x-millm-profile": "gloomy"})
    assert response.headers["x-millm-profile"] == "gloomy@2"
    assert response.json()["millm"]["fingerprint"] == "print-gloomy"
    inline = {"features": [{"index": 1}]}
    await residuals(steering=inline)
    assert api.steering.selections[-1].inline == inline


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"sites": []}, "sites", "must not be empty"),
        ({"sites": [{"layer": 1}] * 2}, "sites[1]", "listed twice"),
        ({"sites": [{"layer": layer} for layer in range(65)]}, "sites", "at most 64"),
        ({"sites": [{"layer": 3}]}, "sites[0].layer", "must be 0 to 2"),
        ({"sites": [{"layer": 1}, {"layer": -1}]}, "sites[1].layer", "at least 0"),
        ({"sites": [{"layer": 1, "site": "attn_out"}]}, "sites[0].site", "resid_pre, resid_post, mlp_out"),
        ({"sites": [{"layer": 1, "site": "nowhere"}]}, "sites[0].site", "must be"),
        ({"sites": [{"layer": 1, "sit": "resid_pre"}]}, "sites[0].sit", "not supported"),
        ({"sites": [{"layer": "1"}]}, "sites[0].layer", "an integer"),
        ({"sites": "resid_post"}, "sites", "an array"),
        ({"input": []}, "input", "must be"),
        ({"input": ["a"] * 129}, "input", "at most 128"),
        ({"input": [[70_000]]}, "input", "70000"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input", "either"),
        ({"pooling": "sum"}, "pooling", "must be"),
        ({"pooling": "mean", "ranges": [[50, None]]}, "input[0]", "no tokens to pool"),
        ({"phase": "completion"}, "max_tokens", "at least 1"),
        ({"response_format": "pt"}, "response_format", "must be"),
        ({"response_format": "npz", "encoding_format": "base64"}, "encoding_format", "JSON only"),
        ({"stream": True}, "stream", "response_format"),
        ({"prompt": "a"}, "prompt", "`input`"),
        ({"steerin": {"features": []}}, "steerin", "steering"),
    ],
)
async def test_refusals_name_the_field(api: Api, residuals: Any, fields: dict[str, Any], param: str, words: str):
    response = await residuals(**fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert words in error["message"]
    assert api.engine.requests == []
    assert api.log.only.status == 400


@pytest.mark.parametrize(("form", "name"), [("json", "MAX_FLOAT_VALUES"), ("npz", "MAX_FILE_VALUES")])
async def test_answers_are_bounded(api: Api, residuals: Any, monkeypatch: Any, form: str, name: str):
    monkeypatch.setattr(endpoint, name, 2 * 3 * 4)
    assert (await residuals(response_format=form)).status_code == 200
    refused = await residuals(input=["hey", "you"], response_format=form)
    assert refused.json()["error"]["code"] == "reading_too_large"
    assert "48 values; the limit for this format is 24" in refused.json()["error"]["message"]
    assert (await residuals(input=["hey", "you"], pooling="mean", response_format=form)).status_code == 200


async def test_one_input_is_bounded_as_in_the_engine(residuals: Any, monkeypatch: Any):
    monkeypatch.setattr(endpoint, "MAX_VALUES", 23)
    error = (await residuals()).json()["error"]
    assert (error["param"], error["code"]) == ("sites", "reading_too_large")


async def test_a_key_needs_the_scope_and_pays_for_tokens(api: Api, residuals: Any):
    without = api.keys.add("one", scopes=frozenset({"generate"}))
    assert (await residuals(without)).json()["error"]["code"] == "scope_required"
    poor = api.keys.add("two", tokens_per_minute=5)
    statuses = [(await residuals(poor, input=["hey", "you"])).status_code for _ in range(2)]
    assert statuses == [200, 429]


@pytest.mark.parametrize("form", ["json", "safetensors"])
async def test_a_failure_in_the_engine_is_a_status(api: Api, residuals: Any, form: str):
    api.engine.script = failing("steering_unstable")
    response = await residuals(response_format=form)
    assert response.status_code == 500
    assert api.log.only.error_code == "steering_unstable"


async def test_a_file_ends_the_call_once(api: Api, residuals: Any):
    await content_of(await residuals(response_format="npz"))
    assert (api.log.only.status, api.log.only.error_code) == (200, "")


async def test_a_client_that_leaves_a_file_is_noticed(api: Api, residuals: Any):
    response = await residuals(response_format="npz")
    assert api.log.entries == []
    response.close()
    assert api.log.only.error_code == "client_disconnected"
