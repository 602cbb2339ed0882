"""Activations in responses, over a fake engine: what is told, when, and under which name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from core.runtime import runtime
from inference.captures import ActivationCapture, FeatureValues, Span, TopFeatures
from inference.client import CaptureEvent, Event, GenerationRequest, TokensEvent
from inference.interventions import Site
from inference.steering_refs import SAERef, SAESource
from openai_api.backend import BACKEND, get_backend
from steering.errors import SAEChoiceError, SteeringError, UnknownSAEError
from steering.sae_registry.loaded_sae import LoadedSAE
from steering.watch.watcher import ActiveRule, Watch, WatchedFeature
from tests.openai_api.conftest import Api, chunks_of
from tests.openai_api.fakes import TURN, NoFeatures, finished, tokens_of
from tests.openai_api.test_openapi import validator

SITE = Site(2)
SOURCE = SAESource("org/sae", "c", "/sae", "", "")
REF = SAERef(SOURCE, 40)


@dataclass
class FakeEncoder:
    key = "sae"
    d_in = 4
    d_sae = 40

    def read_site(self, site: Site) -> Site:
        return site


class FakeFeatures(NoFeatures):
    """One SAE, “org/sae”; feature 3 is called rain."""

    failure: SteeringError | None = None

    async def readable(self, model: str, name: str | None) -> LoadedSAE:
        if self.failure is not None:
            raise self.failure
        if name not in {None, "org/sae"}:
            raise UnknownSAEError("There is no such SAE.")
        return LoadedSAE(1, "org/sae", SITE, FakeEncoder(), SOURCE)  # type: ignore[arg-type]

    async def labels(self, sae: int, indices: Iterable[int]) -> dict[int, str]:
        return {index: "rain" for index in indices if index == 3}


@pytest.fixture
def features(api: Api) -> FakeFeatures:
    fake = FakeFeatures()
    runtime.install(BACKEND, replace(get_backend(), features=lambda: fake))
    api.engine.script = reading
    return fake


def read_at(request: GenerationRequest, *places: int, number: int = 0, value: float = 2.0) -> CaptureEvent:
    """Feature 3 is the strongest, and the others are silent."""
    probe = request.captures[number].probe
    if isinstance(probe, FeatureValues):
        values = np.full((len(places), len(probe.features)), value, np.float32)
        return CaptureEvent(request.index, (ActivationCapture(number, len(places), values, places),))
    assert isinstance(probe, TopFeatures)
    values = np.zeros((len(places), probe.count), np.float32)
    values[:, 0] = value
    indices = np.tile(np.arange(3, 3 + probe.count), (len(places), 1))
    return CaptureEvent(request.index, (ActivationCapture(number, len(places), values, places, indices),))


def reading(request: GenerationRequest) -> Iterable[Event]:
    """The prompt at once, then each token at the step behind its own; the last one is never read."""
    num_prompt = len(request.prompt_token_ids)
    tokens = tokens_of(request, "ab")[: request.sampling.max_tokens]
    events: list[Event] = [read_at(request, *range(num_prompt))] if request.captures else []
    for place, token in enumerate(tokens, num_prompt):
        events.append(token)
        if request.captures and place < num_prompt + len(tokens) - 1:
            events.append(read_at(request, place))
    return [*events, finished(request, len(tokens))]


async def test_true_asks_for_the_strongest_ten_of_all_but_special_tokens(api: Api, features: FakeFeatures):
    body = (await api.chat(return_activations=True)).json()

    (request,) = api.engine.requests
    (read,) = request.captures
    assert isinstance(read.probe, TopFeatures)
    assert (read.site, read.probe.count, read.stage, read.phase) == (SITE, 10, "post", "both")
    assert TURN in read.skip_token_ids
    validator("ChatCompletionBody").validate(body)
    told = body["millm"]["activations"]
    assert [(one["place"], one["phase"], one["token"]) for one in told] == [
        (0, "prompt", "<s>"),
        (1, "prompt", "h"),
        (2, "prompt", "i"),
        (3, "prompt", "</s>"),
        (4, "completion", "a"),
    ]
    assert told[0]["features"] == [{"index": 3, "value": 2.0}]
    assert "activations" not in str(body["choices"])


async def test_wishes_reach_the_engine(api: Api, features: FakeFeatures):
    wish = {
        "features": [7, 3],
        "stage": "pre",
        "phase": "prompt",
        "ranges": [[1, 3], [5, None]],
        "special_tokens": True,
    }
    body = (await api.chat(return_activations=wish)).json()

    (read,) = api.engine.requests[0].captures
    assert read.probe == FeatureValues(REF, (7, 3))
    assert (read.stage, read.phase, read.spans) == ("pre", "prompt", (Span(1, 3), Span(5)))
    assert read.skip_token_ids == frozenset()
    assert body["millm"]["activations"][0]["features"] == [{"index": 7, "value": 2.0}, {"index": 3, "value": 2.0}]
    assert api.log.only.parameters["return_activations"]["features"] == [7, 3]


@pytest.mark.parametrize("wish", [False, None])
async def test_no_wish_reads_nothing(api: Api, features: FakeFeatures, wish):
    body = (await api.chat(return_activations=wish)).json()
    assert api.engine.requests[0].captures == ()
    assert "millm" not in body


async def test_chunks_have_what_was_read_since_the_one_before(api: Api, features: FakeFeatures):
    chunks = await chunks_of(await api.chat(stream=True, return_activations=True))

    assert chunks[-1] == "[DONE]"
    for chunk in chunks[:-1]:
        validator("ChatChunkBody").validate(chunk)
    told = [[one["place"] for one in c.get("millm", {}).get("activations", [])] for c in chunks[:-1]]
    assert told == [[], [0, 1, 2, 3], [4], []]


async def test_the_receipt_stays_beside_the_activations(api: Api, features: FakeFeatures):
    body = (await api.chat(profile="gloomy", return_activations=True)).json()
    chunks = await chunks_of(await api.chat(profile="gloomy", stream=True, return_activations=True))

    assert (body["millm"]["profile"], len(body["millm"]["activations"])) == ("gloomy@2", 5)
    assert chunks[-2]["millm"]["profile"] == "gloomy@2"


async def test_choices_share_their_prompt(api: Api, features: FakeFeatures):
    await api.chat(n=3, return_activations=True)
    assert [request.captures[0].phase for request in api.engine.requests] == ["both", "generation", "generation"]
    api.engine.requests.clear()
    await api.complete(n=2, prompt=["a", "b"], return_activations={"phase": "prompt"}, max_tokens=1)
    assert [[read.phase for read in request.captures] for request in api.engine.requests] == [
        ["prompt"],
        [],
        ["prompt"],
        [],
    ]


async def test_tokens_that_a_stop_string_took_back_are_not_told(api: Api, features: FakeFeatures):
    """Their reading came, but they never will."""

    def script(request: GenerationRequest) -> Iterable[Event]:
        first = len(request.prompt_token_ids)
        return [
            TokensEvent(request.index, (97,), "a"),
            read_at(request, first),
            read_at(request, first + 1),
            read_at(request, first + 2),
            finished(request, 3),
        ]

    api.engine.script = script
    body = (await api.complete(return_activations=True)).json()
    assert [one["place"] for one in body["millm"]["activations"]] == [2]


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (SAEChoiceError("Which?"), 400, "sae_required"),
        (UnknownSAEError("None."), 404, "sae_not_found"),
    ],
)
async def test_saes_that_cannot_be_read_through(api: Api, features: FakeFeatures, failure, status, code):
    features.failure = failure
    response = await api.chat(return_activations=True)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, "return_activations.sae", code)
    response = await api.post("/v1/features/activations", {"model": "tiny", "input": "hi"})
    assert (response.status_code, response.json()["error"]["param"]) == (status, "sae")
    assert api.engine.requests == []


@pytest.mark.parametrize(
    ("wish", "param", "code"),
    [
        ("yes", "return_activations", "invalid_type"),
        ({"layer": 3}, "return_activations.layer", "unsupported_parameter"),
        ({"top_k": True}, "return_activations.top_k", "invalid_type"),
        ({"features": [40]}, "return_activations.features", "invalid_feature"),
        ({"features": [1.5]}, "return_activations.features[0]", "invalid_type"),
        ({"ranges": []}, "return_activations.ranges", "invalid_value"),
        ({"ranges": [[True, 2]]}, "return_activations.ranges[0]", "invalid_value"),
        ({"ranges": [[2, 1]]}, "return_activations.ranges[0]", "invalid_value"),
        ({"ranges": [[0, 1]] * 65}, "return_activations.ranges", "invalid_value"),
        ({"sae": ""}, "return_activations.sae", "invalid_value"),
    ],
)
async def test_bad_wishes_are_named(api: Api, features: FakeFeatures, wish, param, code):
    response = await api.chat(return_activations=wish)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)


async def test_best_of_cannot_be_read(api: Api, features: FakeFeatures):
    response = await api.complete(best_of=3, return_activations=True)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "return_activations")


async def test_the_activations_endpoint(api: Api, features: FakeFeatures):
    response = await api.post("/v1/features/activations", {"model": "tiny", "input": ["hi", "ho"], "max_tokens": 2})
    body = response.json()

    assert response.status_code == 200, body
    validator("FeatureActivationsBody").validate(body)
    assert (body["sae"], body["layer"], body["site"], body["stage"]) == ("org/sae", 2, "resid_post", "post")
    assert [one["completion"] for one in body["data"]] == ["ab", "ab"]
    first = body["data"][0]["tokens"]
    assert [token["place"] for token in first] == [0, 1, 2]
    assert first[0]["features"] == [{"index": 3, "value": 2.0, "label": "rain"}]
    assert all(request.sampling.is_greedy for request in api.engine.requests)
    entry = api.log.only
    assert (entry.endpoint, entry.status, entry.prompt_tokens) == ("/v1/features/activations", 200, 4)


async def test_watch_rules_are_read_behind_the_request_s_own_reads_and_found(api: Api, features: FakeFeatures):
    rule = ActiveRule(1, "storm", "alert", WatchedFeature("org/sae", 5), 1.0)
    template = (await features.readable("tiny", None)).encoder
    watched = Watch((read_of(template),), ((rule,),))

    async def watch(model: str, *, special_token_ids: frozenset[int]) -> Watch:
        return watched

    runtime.install(BACKEND, replace(get_backend(), watch=watch))

    def script(request: GenerationRequest) -> Iterable[Event]:
        number = len(request.captures) - 1
        events = [read_at(request, 1, number=number, value=1.5), read_at(request, 3, number=number, value=4.0)]
        return [*events, *reading(request)]

    api.engine.script = script
    body = (await api.chat(profile="gloomy", return_activations=True)).json()
    assert len(body["millm"]["activations"]) == 5, "the rule's readings are nobody's business"
    assert [len(request.captures) for request in api.engine.requests] == [2]
    (found,) = api.log.only.findings
    assert (found.rule, found.value, found.num_tokens, found.place, found.in_prompt) == (rule, 4.0, 2, 3, True)


def read_of(encoder: Any) -> Any:
    from inference.captures import CaptureSpec

    return CaptureSpec(site=SITE, probe=FeatureValues(encoder, (5,), above=(1.0,)), passes_over_cached=True)
