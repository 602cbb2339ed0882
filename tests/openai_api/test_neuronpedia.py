"""Neuronpedia's API over fakes: names, errors, rights and log rows. tests/clients compares its values with /v1."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from django.urls import resolve

from core.runtime import runtime
from inference.client import Event, GenerationRequest
from inference.files.sources import ModelSource
from inference.steering_refs import SAESource
from millm_site.http.asgi_handler import ASYNC_PATHS
from openai_api.backend import BACKEND, get_backend
from openai_api.neuronpedia.routes import ROUTES
from openai_api.neuronpedia.sources import source_id, source_set
from steering.features.catalog import (
    FeatureDetail,
    FeatureNotFoundError,
    FeatureQuery,
    FeatureRecord,
    SAERecord,
)
from steering.features.labels import FeatureExample
from steering.features.logit_lens import LensToken, LensUnavailableError, LogitLens
from steering.sae_registry.loaded_sae import LoadedSAE
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import CONTEXT, NoFeatures, finished
from tests.openai_api.test_activations import SITE, SOURCE, FakeEncoder, read_at, reading
from tests.openai_api.test_openapi import validator

RAIN = FeatureRecord("rain-sae", "tiny", 3, "rain", "", "rita", 4.0, 0.02, (" rain",))
STEER: dict[str, Any] = {
    "modelId": "tiny",
    "prompt": "hi",
    "features": [{"modelId": "tiny", "layer": "2-rain-sae", "index": "3", "strength": 2}],
    "strength_multiplier": 4,
    "n_tokens": 4,
    "seed": 7,
}
CHAT = [{"role": "user", "content": "hi"}, {"role": "model", "content": "hello"}, {"role": "user", "content": "so"}]
NEW: dict[str, Any] = {"feature": {"modelId": "tiny", "source": "2-rain-sae", "index": "3"}, "customText": "hi"}


def sae(pk: int, name: str, model: str) -> SAERecord:
    return SAERecord(pk, name, model, 2, "resid_post", 40, SAESource(name, "c", "/sae", "", ""), ModelSource("/model"))


class FakeFeatures(NoFeatures):
    """Two SAEs of the model tiny, and one of org/steered, whose names contain slashes."""

    def __init__(self) -> None:
        self.all = [sae(1, "2-own", "tiny"), sae(2, "rain-sae", "tiny"), sae(3, "org/sae", "org/steered")]
        self.queries: list[FeatureQuery] = []

    async def saes(self, model: str) -> tuple[SAERecord, ...]:
        return tuple(one for one in self.all if one.model == model)

    async def search(self, query: FeatureQuery) -> tuple[FeatureRecord, ...]:
        self.queries.append(query)
        return (RAIN,) * query.limit

    async def records(self, sae: SAERecord, indices: Iterable[int]) -> dict[int, FeatureRecord]:
        return {3: RAIN} if 3 in set(indices) else {}

    async def detail(self, sae: SAERecord, index: int) -> FeatureDetail:
        if index >= sae.d_sae:
            raise FeatureNotFoundError("The SAE has features 0 to 39.")
        examples = (FeatureExample((" the", " rain"), (0.0, 4.0)),)
        return FeatureDetail(RAIN, 1.5, examples, explanations=(("wet weather", "ann"), ("umbrellas", "")))

    async def lens(self, sae: SAERecord, index: int) -> LogitLens:
        if sae.model != "tiny":
            raise LensUnavailableError("Its files are not here.")
        return LogitLens((LensToken(5, " wet", 2.5),), (LensToken(6, " dry", -2.5),))

    async def readable(self, model: str, name: str | None) -> LoadedSAE:
        return LoadedSAE(1, str(name), SITE, FakeEncoder(), SOURCE)  # type: ignore[arg-type]


@pytest.fixture
def features(api: Api) -> FakeFeatures:
    fake = FakeFeatures()
    runtime.install(BACKEND, replace(get_backend(), features=lambda: fake))
    return fake


@pytest.fixture(autouse=True)
def _features(features: FakeFeatures) -> None:
    """All tests have them."""


async def post(api: Api, path: str, body: Any, **headers: str) -> Any:
    return await api.post(f"/api/{path}", body, **headers)


def test_sources_begin_with_their_layer():
    own, bare = sae(1, "2-own", "tiny"), sae(2, "rain-sae", "tiny")
    assert [(source_id(one), source_set(one)) for one in (own, bare)] == [("2-own", "own"), ("2-rain-sae", "rain-sae")]


def test_every_route_is_served_on_the_event_loop_and_takes_none_from_the_management_api():
    for route in ROUTES:
        assert ASYNC_PATHS.match(route.path), route.path
    for name in ("features", "features/3/effect", "models", "vectors", "versions", "evaluations", "stats", "me"):
        assert not ASYNC_PATHS.match(f"/api/{name}")
        assert resolve(f"/api/{name}").app_name == "management_api"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("tiny/2-rain-sae/3", "2-rain-sae"),
        ("tiny/rain-sae/3/", "2-rain-sae"),
        ("small/2-own/3", "2-own"),
        ("org/steered/org/sae/3", "2-org/sae"),
        ("org/steered/2-org/sae/3", "2-org/sae"),
    ],
)
async def test_features_are_found_by_model_source_and_index(api: Api, path: str, source: str):
    response = await api.client.get(f"/api/feature/{path}")
    body = response.json()

    assert response.status_code == 200, body
    validator("NeuronpediaFeatureBody").validate(body)
    assert (body["layer"], body["index"], body["explanations"][0]["description"]) == (source, "3", "rain")
    others = [(one["description"], one["explanationModelName"]) for one in body["explanations"][-2:]]
    assert others == [("wet weather", "ann"), ("umbrellas", None)]
    assert body["activations"][0]["maxValueTokenIndex"] == 1
    assert body["pos_str"] == ([" wet"] if "org" not in path else [])


@pytest.mark.parametrize(
    ("path", "status", "param", "code"),
    [
        ("none/2-rain-sae/3", 404, "modelId", "model_not_found"),
        ("tiny/2-none/3", 404, "source", "sae_not_found"),
        ("tiny/3-rain-sae/3", 404, "source", "sae_not_found"),
        ("tiny/org/sae/3", 404, "source", "sae_not_found"),
        ("tiny/2-own/40", 404, "index", "feature_not_found"),
        ("tiny/2-own/-1", 404, "index", "feature_not_found"),
        ("tiny/2-own/" + "9" * 400, 404, "index", "feature_not_found"),
        ("tiny/%00/3", 404, "source", "sae_not_found"),
    ],
)
async def test_unknown_features(api: Api, path: str, status: int, param: str, code: str):
    response = await api.client.get(f"/api/feature/{path}")
    body = response.json()

    validator("NeuronpediaErrorBody").validate(body)
    assert (response.status_code, body["param"], body["code"]) == (status, param, code)
    assert api.log.only.error_code == code


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("activation/new", {**NEW, "customText": ""}, "customText", "invalid_value"),
        ("activation/new", {**NEW, "customText": ["a"] * 129}, "customText", "invalid_value"),
        ("activation/new", {**NEW, "customText": "x" * (CONTEXT + 1)}, "customText", "context_length_exceeded"),
        ("activation/new", {**NEW, "customText": "x" * 200_000}, "customText", "context_length_exceeded"),
        ("activation/new", {**NEW, "feature": {"modelId": "tiny", "index": 1}}, "feature.source", None),
        ("activation/new", {**NEW, "feature": {**NEW["feature"], "index": 40}}, "feature.index", "invalid_feature"),
        ("activation/new", {**NEW, "feature": {**NEW["feature"], "index": "x"}}, "feature.index", "invalid_value"),
        ("activation/new", {"customText": "a"}, "feature", "missing_required_parameter"),
        ("search-all", {"modelId": "tiny", "text": "a"}, "sourceSet", "missing_required_parameter"),
        ("search-all", {"modelId": "tiny", "text": "a", "sourceSet": "own", "sortIndexes": [9]}, "sortIndexes", None),
        ("steer", {**STEER, "features": []}, "features", "invalid_value"),
        ("steer", {**STEER, "stream": True}, "stream", "unsupported_parameter"),
        ("steer", {**STEER, "n_tokens": CONTEXT}, "n_tokens", "context_length_exceeded"),
        ("steer", {**STEER, "freq_penalty": 3}, "freq_penalty", "invalid_value"),
        ("steer", {**STEER, "steer_method": "PROJECTION_CAP"}, "steer_method", "invalid_value"),
        ("steer-chat", {**STEER, "defaultChatMessages": CHAT, "steeredChatMessages": []}, "steeredChatMessages", None),
    ],
)
async def test_invalid_requests_name_the_field(api: Api, path: str, body: Any, param: str, code: str | None):
    response = await post(api, path, body)
    error = response.json()

    assert (response.status_code, error["param"]) == (400, param), error
    assert code is None or error["code"] == code
    assert not api.engine.requests or path == "search-all"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
async def test_strengths_that_are_no_numbers(api: Api, number: str):
    body = json.dumps(STEER).replace('"strength": 2', f'"strength": {number}').encode()
    response = await post(api, "steer", body)

    assert response.status_code == 400
    assert response.json()["code"] in {"invalid_json", "invalid_value"}
    assert api.engine.requests == []


async def test_a_feature_of_another_model(api: Api):
    other = {**STEER["features"][0], "modelId": "org/steered"}
    response = await post(api, "steer", {**STEER, "features": [other]})
    assert (response.status_code, response.json()["param"]) == (400, "features[0].modelId")


async def test_one_feature_s_activations_leave_out_the_bos_token(api: Api):
    api.engine.script = reading
    api.registry.text.encode = lambda text, **_: [256, *text.encode()]  # type: ignore[method-assign]
    body = (await post(api, "activation/new", NEW)).json()

    validator("NeuronpediaActivationBody").validate(body)
    assert (body["tokens"], body["values"], body["maxValue"]) == (["h", "i"], [2.0, 2.0], 2.0)
    several = (await post(api, "activation/new", {**NEW, "customText": ["hi", "you"]})).json()
    assert [one["tokens"] for one in several] == [["h", "i"], ["y", "o", "u"]]


def reading_all(request: GenerationRequest) -> Iterable[Event]:
    """Feature 3 of each SAE is active on every token, but not in a text of one letter."""
    num_prompt = len(request.prompt_token_ids)
    value = 2.0 if num_prompt > 2 else 0.0
    captures = range(len(request.captures))
    events = [read_at(request, *range(num_prompt), number=number, value=value) for number in captures]
    return [*events, finished(request, 0)]


async def test_searches_by_text(api: Api):
    api.engine.script = reading_all
    api.registry.text.encode = lambda text, **_: [256, *text.encode()]  # type: ignore[method-assign]
    body = {"modelId": "tiny", "text": "hi", "selectedLayers": ["2-own", "2-rain-sae"]}
    found = (await post(api, "search-all", body)).json()

    validator("SearchAllBody").validate(found)
    assert [(one["layer"], one["index"], one["values"]) for one in found["result"]] == [
        ("2-own", "3", [0.0, 2.0, 2.0]),
        ("2-rain-sae", "3", [0.0, 2.0, 2.0]),
    ]
    quiet = (await post(api, "search-all", {**body, "text": "h"})).json()
    assert (quiet["tokens"], quiet["result"]) == (["<s>", "h"], [])
    dense = (await post(api, "search-all", {**body, "densityThreshold": 0.01})).json()
    assert dense["result"] == []
    tokens = (await post(api, "search-topk-by-token", {"modelId": "tiny", "source": "2-own", "text": "hi"})).json()
    validator("TopKByTokenBody").validate(tokens)
    assert [(one["position"], one["topFeatures"][0]["activationValue"]) for one in tokens["results"]] == [
        (1, 2.0),
        (2, 2.0),
    ]
    assert {capture.stage for request in api.engine.requests for capture in request.captures} == {"post"}


async def test_too_much_to_read(api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("openai_api.neuronpedia.activations.MAX_READ", 39)
    response = await post(api, "activation/source", {"modelId": "tiny", "source": "2-own", "customText": "h"})
    assert (response.status_code, response.json()["code"]) == (400, "reading_too_large")


async def test_explanations_are_searched_by_page(api: Api, features: FakeFeatures):
    body = {"modelId": "tiny", "query": "wet", "layers": ["2-rain-sae", "2-own"], "offset": 20}
    found = (await post(api, "explanation/search", body)).json()

    validator("ExplanationsBody").validate(found)
    assert (found["resultsCount"], found["hasMore"], found["nextOffset"]) == (20, True, 40)
    assert found["results"][0]["layer"] == "2-rain-sae"
    names = frozenset({"rain-sae", "2-own"})
    assert features.queries == [FeatureQuery("wet", frozenset({"tiny"}), names, 21, 20, by_tokens=True)]


async def test_both_texts_are_generated_alike_and_share_a_log_row(api: Api):
    body = (await post(api, "steer", STEER)).json()

    validator("SteerBody").validate(body)
    default, steered = api.engine.requests
    assert (default.steering, steered.steering is not None) == (None, True)
    assert default.sampling == steered.sampling
    assert (steered.index, steered.sampling.seed, steered.sampling.max_tokens) == (0, 7, 4)
    inline = api.steering.selections[-1].inline
    edit = {"sae": "rain-sae", "index": 3, "operation": "add", "strength": 8.0, "unit": "raw"}
    assert inline == {"features": [{**edit, "special_tokens": True, "sink_tokens": True}]}
    row = api.log.only
    assert (row.endpoint, row.model, row.status, row.prompt) == ("/api/steer", "tiny", 200, "hi")
    assert len(json.loads(row.completion)) == 2
    assert row.completion_tokens == 8
    assert body["shareUrl"].endswith(f"/{row.id}/change/")


async def test_a_chat_s_reply_follows_its_messages(api: Api):
    chat = {**STEER, "defaultChatMessages": CHAT[:1], "steeredChatMessages": CHAT, "steer_special_tokens": False}
    body = (await post(api, "steer-chat", {**chat, "steer_method": "ORTHOGONAL_DECOMP"})).json()

    validator("SteerChatBody").validate(body)
    assert [one["role"] for one in body["STEERED"]["chatTemplate"]] == ["user", "model", "user", "assistant"]
    assert [one["role"] for one in body["DEFAULT"]["chat_template"]] == ["user", "assistant"]
    inline: Any = api.steering.selections[-1].inline
    assert [(one["operation"], one["special_tokens"]) for one in inline["features"]] == [("orthogonal", False)]
    assert "unsteered" not in api.log.only.parameters
    assert body["settings"]["n_tokens"] == 4


class TestKeys:
    """The library sends its key as `x-api-key`."""

    @pytest.mark.parametrize(
        ("fields", "path", "status", "code"),
        [
            ({}, "activation/get", 200, None),
            ({"scopes": frozenset({"features"})}, "activation/get", 200, None),
            ({"scopes": frozenset({"generate"})}, "activation/get", 403, "scope_required"),
            ({"scopes": frozenset({"manage"})}, "activation/get", 403, "scope_required"),
            ({"allowed_models": frozenset({"org/steered"})}, "activation/get", 403, "model_not_allowed"),
            ({"may_steer_inline": True}, "steer", 200, None),
            ({"may_steer_inline": True, "scopes": frozenset({"features"})}, "steer", 403, "scope_required"),
            ({}, "steer", 403, "inline_steering_not_allowed"),
            ({"may_steer_inline": True, "allowed_models": frozenset({"cold:8b"})}, "steer", 403, "model_not_allowed"),
            ({"may_steer_inline": True, "requests_per_minute": 0}, "steer", 429, "rate_limit_exceeded"),
        ],
    )
    async def test_rights(self, api: Api, fields: dict[str, Any], path: str, status: int, code: str | None):
        api.keys.add("secret", **fields)
        place = {"modelId": "tiny", "source": "2-own", "index": 3}
        response = await post(api, path, STEER if path == "steer" else place, **{"x-api-key": "secret"})

        assert response.status_code == status, response.content
        assert code is None or response.json()["code"] == code
        assert status == 200 or api.engine.requests == []

    async def test_no_key_and_a_wrong_one(self, api: Api, settings: Any):
        settings.MILLM_AUTH = "required"
        for headers in ({}, {"x-api-key": "wrong"}):
            response = await post(api, "steer", STEER, **headers)
            assert (response.status_code, response.json()["code"]) == (401, "invalid_api_key")

    async def test_searches_find_only_what_the_key_may_use(self, api: Api, features: FakeFeatures):
        api.keys.add("secret", allowed_models=frozenset({"tiny"}))
        key = {"x-api-key": "secret"}
        assert (await post(api, "explanation/search-all", {"query": "wet"}, **key)).status_code == 200
        assert features.queries[0].models == {"tiny"}
        response = await post(api, "explanation/search-model", {"query": "wet", "modelId": "org/steered"}, **key)
        assert (response.status_code, response.json()["code"]) == (403, "model_not_allowed")
        assert "org/sae" not in response.content.decode()

    async def test_a_default_profile_steers_neither_text(self, api: Api):
        api.keys.add("secret", may_steer_inline=True, default_profile="gloomy")
        assert (await post(api, "steer", STEER, **{"x-api-key": "secret"})).status_code == 200
        assert [one.reference for one in api.steering.selections] == [None, None]
