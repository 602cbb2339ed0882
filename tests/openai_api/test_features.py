"""POST /v1/features/search and GET /v1/features/{sae}/{index}: over fakes, then over the database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.runtime import runtime
from inference.files.sources import ModelSource
from inference.steering_refs import SAESource
from openai_api.backend import BACKEND, get_backend
from steering.errors import EffectNotMeasuredError, SAENotMeasuredError, UnknownSAEError
from steering.features.catalog import (
    EffectRecord,
    ExampleBand,
    FeatureCatalog,
    FeatureDetail,
    FeatureNotFoundError,
    FeatureQuery,
    FeatureRecord,
    Histogram,
    LabelsNotEmbeddedError,
    SAERecord,
)
from steering.features.labels import FeatureExample
from steering.features.logit_lens import LensBusyError, LensToken, LensUnavailableError, LogitLens
from steering.features.neighbours import CofiringFeature, CofiringFeatures, NeighbourFeature
from steering.measuring.quantiles import ActivationQuantiles
from steering.models import SAE, Feature
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import NoFeatures
from tests.openai_api.test_openapi import validator

RAIN = FeatureRecord("org/sae", "tiny", 3, "rain", "More.", "rita", 4.0, 0.02, (" rain",))
LENS = LogitLens((LensToken(5, " wet", 2.5),), (LensToken(6, " dry", -2.5),))


class FakeFeatures(NoFeatures):
    def __init__(self) -> None:
        self.queries: list[FeatureQuery] = []
        self.found: tuple[FeatureRecord, ...] = (RAIN,)
        self.looks: list[int] = []
        self.lens_failure: Exception | None = None
        self.search_failure: Exception | None = None

    async def search(self, query: FeatureQuery) -> tuple[FeatureRecord, ...]:
        self.queries.append(query)
        if self.search_failure is not None:
            raise self.search_failure
        return self.found[: query.limit]

    async def sae(self, name: str) -> SAERecord:
        models = {"org/sae": "tiny", "steered-sae": "org/steered"}
        if name not in models:
            raise UnknownSAEError(f"The SAE `{name}` does not exist on this server.")
        files = SAESource(name, "c", "/sae", "", "")
        return SAERecord(1, name, models[name], 2, "resid_post", 40, files, ModelSource("/model"))

    async def detail(self, sae: SAERecord, index: int) -> FeatureDetail:
        if index >= sae.d_sae:
            raise FeatureNotFoundError(f"The SAE has features 0 to {sae.d_sae - 1}.")
        examples = (FeatureExample((" the", " rain"), (0.0, 4.0)),)
        histogram, quantiles = Histogram(0.5, (3, 1)), ActivationQuantiles(0.75, 0.875, 4)
        bands = (ExampleBand(0.5, 0.75, 12, examples),)
        others = (("wet weather", "ann"), ("umbrellas", ""))
        return FeatureDetail(
            RAIN, 1.5, examples, "measured", "default abc", histogram, quantiles, "default abc", bands, others
        )

    async def effect(self, sae: SAERecord, index: int) -> EffectRecord:
        if index != 3:
            raise EffectNotMeasuredError("The effect was not measured.")
        return EffectRecord(
            2.0,
            None,
            0.3,
            0.4,
            False,
            0.2,
            0.1,
            0.05,
            0.01,
            1.0,
            0.1,
            ((2.0, 0.3),),
            (("p", "b", "a"),),
            "2026-11-23T00:00:00+00:00",
        )

    async def neighbours(self, sae: SAERecord, index: int, count: int) -> list[NeighbourFeature]:
        return [NeighbourFeature(7, 0.5, ""), NeighbourFeature(8, 0.4, "rain")][:count]

    async def cofiring(self, sae: SAERecord, index: int) -> CofiringFeatures:
        if index != 3:
            raise SAENotMeasuredError("Measure the SAE again.")
        return CofiringFeatures(900, (CofiringFeature(7, 0.5, 40, ""), CofiringFeature(8, 0.25, 20, "rain")))

    async def lens(self, sae: SAERecord, index: int) -> LogitLens:
        self.looks.append(index)
        if self.lens_failure is not None:
            raise self.lens_failure
        return LENS


@pytest.fixture
def features(api: Api) -> FakeFeatures:
    fake = FakeFeatures()
    runtime.install(BACKEND, replace(get_backend(), features=lambda: fake))
    return fake


async def search(api: Api, headers: dict[str, str] | None = None, /, **fields: Any) -> Any:
    return await api.post("/v1/features/search", {"query": "rain", **fields}, **(headers or {}))


async def test_search(api: Api, features: FakeFeatures):
    body = (await search(api)).json()

    validator("FeatureListBody").validate(body)
    assert (body["data"][0]["label"], body["data"][0]["density"], body["has_more"]) == ("rain", 0.02, False)
    assert features.queries == [
        FeatureQuery("rain", frozenset({"tiny", "org/steered", "cold:8b", "vectors"}), None, 21, 0)
    ]


async def test_by_meaning(api: Api, features: FakeFeatures):
    assert (await search(api, embedding_model="vectors")).status_code == 200
    meaning = features.queries[0].meaning

    assert meaning is not None
    assert meaning.model == "vectors"
    assert sum(value**2 for value in meaning.vector) == pytest.approx(1)


async def test_by_token_embeddings_and_sorted(api: Api, features: FakeFeatures):
    assert (await search(api, meaning=True, sort="steers_well")).status_code == 200
    assert (features.queries[0].by_tokens, features.queries[0].sort) == (True, "steers_well")


async def test_labels_that_were_not_embedded(api: Api, features: FakeFeatures):
    features.search_failure = LabelsNotEmbeddedError("No labels have been embedded with vectors.")
    response = await search(api, embedding_model="vectors")
    error = response.json()["error"]

    assert (response.status_code, error["param"], error["code"]) == (400, "embedding_model", "labels_not_embedded")


async def test_pages(api: Api, features: FakeFeatures):
    features.found = (RAIN,) * 3
    body = (await search(api, limit=2, offset=4, sae="org/sae", model="small")).json()

    assert (len(body["data"]), body["has_more"]) == (2, True)
    assert features.queries == [FeatureQuery("rain", frozenset({"tiny"}), frozenset({"org/sae"}), 3, 4)]
    assert api.log.only.model == "tiny"


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"query": None}, 400, "query", "invalid_type"),
        ({"query": ""}, 400, "query", "invalid_value"),
        ({"query": "x" * 501}, 400, "query", "invalid_value"),
        ({"query": "a\0b"}, 400, "query", "invalid_value"),
        ({"query": 7}, 400, "query", "invalid_type"),
        ({"limit": 0}, 400, "limit", "invalid_value"),
        ({"limit": 101}, 400, "limit", "invalid_value"),
        ({"limit": 10**30}, 400, "limit", "invalid_value"),
        ({"offset": -1}, 400, "offset", "invalid_value"),
        ({"model": "none"}, 404, "model", "model_not_found"),
        ({"sae": "none"}, 404, "sae", "sae_not_found"),
        ({"embedding_model": "none"}, 404, "embedding_model", "model_not_found"),
        ({"embedding_model": 7}, 400, "embedding_model", "invalid_type"),
        ({"meaning": "yes"}, 400, "meaning", "invalid_type"),
        ({"meaning": True, "embedding_model": "vectors"}, 400, "meaning", "invalid_value"),
        ({"sort": "random"}, 400, "sort", "invalid_value"),
        ({"embedding_model": "tiny"}, 400, "model", "wrong_model_kind"),
    ],
)
async def test_bad_searches_are_named(api: Api, features: FakeFeatures, fields, status, param, code):
    response = await search(api, **fields)
    error = response.json()["error"]

    assert (response.status_code, error["param"], error["code"]) == (status, param, code)
    assert features.queries == []


async def test_a_body_over_the_limit_is_refused(api: Api, features: FakeFeatures, settings: Any):
    settings.MILLM_MAX_BODY_BYTES = 100
    assert (await search(api, user="x" * 200)).status_code == 413


async def test_a_key_finds_features_of_its_models_alone(api: Api, features: FakeFeatures):
    key = api.keys.add("sk-1", allowed_models=frozenset({"org/steered"}))

    assert (await search(api, key)).status_code == 200
    assert features.queries[0].models == {"org/steered"}
    for fields in ({"model": "tiny"}, {"sae": "org/sae"}):
        response = await search(api, key, **fields)
        assert (response.status_code, response.json()["error"]["code"]) == (403, "model_not_allowed")
    response = await api.client.get("/v1/features/org/sae/3", headers=key)
    assert response.status_code == 403
    assert features.looks == []


async def test_a_wrong_key_reads_nothing(api: Api, features: FakeFeatures):
    for path in ("/v1/features/org/sae/3", "/v1/features/none/3"):
        response = await api.client.get(path, headers={"Authorization": "Bearer wrong"})
        assert response.status_code == 401


@pytest.mark.parametrize("path", ["/v1/features/org/sae/3", "/v1/features/org/sae/3/"])
async def test_look_up(api: Api, features: FakeFeatures, path: str):
    body = (await api.client.get(path)).json()

    validator("FeatureDetailBody").validate(body)
    assert (body["index"], body["layer"], body["site"], body["decoder_norm"]) == (3, 2, "resid_post", 1.5)
    assert body["examples"] == [{"tokens": [" the", " rain"], "values": [0.0, 4.0], "max_value": 4.0}]
    assert (body["max_activation_source"], body["examples_source"]) == ("measured", "default abc")
    assert body["explanations"] == [{"text": "wet weather", "source": "ann"}, {"text": "umbrellas", "source": ""}]
    assert body["histogram"] == {"width": 0.5, "counts": [3, 1]}
    assert body["activation_quantiles"] == {"p99": 0.75, "p999": 0.875, "n": 4, "corpus": "default abc"}
    assert body["example_bands"] == [{"low": 0.5, "high": 0.75, "num_texts": 12, "examples": body["examples"]}]
    assert body["logit_lens"]["promoted"] == [{"id": 5, "token": " wet", "logit": 2.5}]
    assert body["logit_lens"]["suppressed"] == [{"id": 6, "token": " dry", "logit": -2.5}]
    assert body["logit_lens_error"] is None


async def test_effect_and_neighbours(api: Api, features: FakeFeatures):
    body = (await api.client.get("/v1/features/org/sae/3/effect")).json()
    validator("FeatureEffectBody").validate(body)
    assert (body["strength"], body["curve"]) == (2.0, [[2.0, 0.3]])
    assert body["samples"] == [{"prompt": "p", "before": "b", "after": "a"}]
    body = (await api.client.get("/v1/features/org/sae/3/neighbours?limit=1")).json()
    validator("NeighboursBody").validate(body)
    assert body["data"] == [{"index": 7, "label": None, "cosine": 0.5}]
    response = await api.client.get("/v1/features/org/sae/4/effect")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "effect_not_measured")
    for limit in ("0", "101", "x", "-1"):
        response = await api.client.get(f"/v1/features/org/sae/3/neighbours?limit={limit}")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "limit")
    assert (await api.client.get("/v1/features/none/3/effect")).status_code == 404


async def test_cofiring(api: Api, features: FakeFeatures):
    body = (await api.client.get("/v1/features/org/sae/3/cofiring?limit=1")).json()
    validator("CofiringBody").validate(body)
    assert body["num_tokens"] == 900
    assert body["data"] == [{"index": 7, "label": None, "phi": 0.5, "tokens": 40}]
    response = await api.client.get("/v1/features/org/sae/4/cofiring")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "sae_not_measured")
    response = await api.client.get("/v1/features/org/sae/3/cofiring?limit=101")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "limit")


async def test_without_the_lens(api: Api, features: FakeFeatures):
    body = (await api.client.get("/v1/features/org/sae/3?logit_lens=false")).json()

    assert (body["logit_lens"], body["logit_lens_error"], features.looks) == (None, None, [])


async def test_a_lens_that_cannot_be_says_why(api: Api, features: FakeFeatures):
    features.lens_failure = LensUnavailableError("There is no directory.")
    body = (await api.client.get("/v1/features/org/sae/3")).json()

    assert (body["logit_lens"], body["logit_lens_error"]) == (None, "There is no directory.")


async def test_too_many_looks_are_503(api: Api, features: FakeFeatures):
    features.lens_failure = LensBusyError()
    response = await api.client.get("/v1/features/org/sae/3")

    assert (response.status_code, response.json()["error"]["code"]) == (503, "server_is_overloaded")
    assert response.headers["Retry-After"]


@pytest.mark.parametrize(
    ("path", "status", "param", "code"),
    [
        ("/v1/features/none/3", 404, "sae", "sae_not_found"),
        ("/v1/features/org/sae/40", 404, "index", "feature_not_found"),
        ("/v1/features/org/sae/-1", 404, "index", "feature_not_found"),
        ("/v1/features/org/sae/x", 404, "index", "feature_not_found"),
        ("/v1/features/org/sae/" + "9" * 400, 404, "index", "feature_not_found"),
        ("/v1/features/org/sae/3?logit_lens=maybe", 400, "logit_lens", "invalid_value"),
    ],
)
async def test_bad_look_ups_are_named(api: Api, features: FakeFeatures, path, status, param, code):
    response = await api.client.get(path)
    error = response.json()["error"]

    assert (response.status_code, error["param"], error["code"]) == (status, param, code)


@pytest.mark.django_db(transaction=True)
def test_the_reader_reads_the_database(django_user_model: Any):
    from asgiref.sync import async_to_sync

    from inference.models import LanguageModel

    model = LanguageModel.objects.create(name="tiny", source="/model")
    sae = SAE.objects.create(name="s", model=model, source="/sae", layer=1, d_in=4, d_sae=2, checksum="c")
    Feature.objects.create(sae=sae, index=0, label="rain", examples=[{"tokens": ["a"], "values": [1.0]}])
    Feature.objects.create(sae=sae, index=1, label="sun")

    async def read() -> None:
        reader = FeatureCatalog()
        (found,) = await reader.search(FeatureQuery("rainy or rain", frozenset({"tiny"}), None, 5))
        assert (found.sae, found.model, found.index) == ("s", "tiny", 0)
        assert await reader.search(FeatureQuery("rain", frozenset({"other"}), None, 5)) == ()
        assert await reader.search(FeatureQuery("rain", frozenset({"tiny"}), frozenset({"other"}), 5)) == ()
        record = await reader.sae("s")
        assert (await reader.detail(record, 0)).examples == (FeatureExample(("a",), (1.0,)),)
        with pytest.raises(FeatureNotFoundError, match="features 0 to 1, got 7"):
            await reader.detail(record, 7)
        for name in ("none", "a\0"):
            with pytest.raises(UnknownSAEError):
                await reader.sae(name)

    async_to_sync(read)()
