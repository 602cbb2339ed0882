"""Neuronpedia's own library: features, activations, searches and steering. It is told the server by its base URL."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

from cases import case, main
from neuronpedia.np_feature import Feature, SteerFeature
from neuronpedia.np_sae_feature import SAEFeature
from neuronpedia.requests.activation_request import ActivationRequest
from neuronpedia.requests.base_request import NPRequest
from neuronpedia.requests.source_activation_request import SourceActivationRequest
from neuronpedia.requests.steer_request import SteerChatRequest, SteerCompletionRequest
from neuronpedia.requests.topk_by_token_request import TopKByTokenRequest

LOCAL = NPRequest.BASE_URL  # of USE_LOCALHOST=true
NPRequest.BASE_URL = LOCAL.replace("http://localhost:3000", sys.argv[1])

MODEL, SOURCE, INDEX = "demo", sys.argv[2], int(sys.argv[3])
TEXT = "The sea was calm and the little boat was happy."
TEXTS = [TEXT, "A dog ran home."]
CHAT = [{"role": "user", "content": "Tell me a story."}]
FEATURE = SteerFeature(MODEL, SOURCE, str(INDEX), strength=1.5)
STEERING: dict[str, Any] = {"temperature": 0.7, "n_tokens": 16, "freq_penalty": 0.5, "seed": 11}


@case
def local_url(url: str) -> str:
    return LOCAL


@case
def feature(url: str) -> Any:
    return dataclasses.asdict(Feature.get(MODEL, SOURCE, INDEX))


@case
def sae_feature(url: str) -> Any:
    return json.loads(SAEFeature.get(MODEL, SOURCE, str(INDEX)).jsonData)


@case
def activation(url: str) -> Any:
    return dataclasses.asdict(ActivationRequest().compute_activation_for_text(MODEL, SOURCE, INDEX, TEXT))


@case
def activations(url: str) -> Any:
    found = ActivationRequest().compute_activation_for_texts(MODEL, SOURCE, INDEX, TEXTS)
    return [dataclasses.asdict(one) for one in found]


@case
def source(url: str) -> Any:
    return ActivationRequest().compute_all_source_activations_for_text(MODEL, SOURCE, TEXTS)


@case
def search(url: str) -> Any:
    find = SourceActivationRequest().compute_top_features_for_text
    return {
        "by_maximum": [dataclasses.asdict(one) for one in find(MODEL, SOURCE, TEXT, num_results=5)],
        "by_sum": [
            dataclasses.asdict(one)
            for one in find(MODEL, [SOURCE], TEXT, sort_results_by_activations_at_token_indexes=[2, 3], num_results=5)
        ],
    }


@case
def search_texts(url: str) -> Any:
    found = SourceActivationRequest().compute_top_features_for_texts(MODEL, SOURCE, TEXTS, num_results=3)
    return [[dataclasses.asdict(one) for one in each] for each in found]


@case
def top_by_token(url: str) -> Any:
    found = TopKByTokenRequest().compute_top_features_by_token_for_text(MODEL, SOURCE, TEXT, num_results=4)
    several = TopKByTokenRequest().compute_top_features_by_token_for_texts(MODEL, SOURCE, TEXTS, num_results=4)
    tokens = [
        [one.position, one.token, [[top.feature.index, top.activationValue] for top in one.topFeatures]]
        for one in found
    ]
    return {"one": tokens, "lengths": [len(each) for each in several]}


@case
def steer(url: str) -> Any:
    return SteerCompletionRequest().steer_features(MODEL, [FEATURE], TEXT, strength_multiplier=2, **STEERING)


@case
def steer_chat(url: str) -> Any:
    return SteerChatRequest().steer_features(MODEL, [FEATURE], CHAT, CHAT, strength_multiplier=2, **STEERING)


@case
def errors(url: str) -> Any:
    bad: list[Callable[[], object]] = [
        lambda: Feature.get("none", SOURCE, INDEX),
        lambda: Feature.get(MODEL, "9-none", INDEX),
        lambda: Feature.get(MODEL, SOURCE, 10**6),
        lambda: ActivationRequest().compute_activation_for_text(MODEL, SOURCE, str(10**6), TEXT),
        lambda: ActivationRequest().compute_activation_for_text(MODEL, SOURCE, "0", "sea " * 200_000),
        lambda: SteerChatRequest().steer_features(MODEL, [FEATURE], [], CHAT),
        lambda: ActivationRequest(api_key="sk-wrong").compute_activation_for_text(MODEL, SOURCE, "0", TEXT),
    ]
    return [_error_of(each) for each in bad]


def _error_of(work: Callable[[], object]) -> list[str]:
    try:
        work()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


main()
