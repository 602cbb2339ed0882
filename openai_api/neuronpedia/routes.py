"""The routes of Neuronpedia's API. They lie beside those of the management API, whose names are plurals.

``millm_site.http.cors.NEURONPEDIA`` lists their roots, which the event loop serves.
"""

from __future__ import annotations

from functools import partial

from openai_api.http.errors import neuronpedia_error
from openai_api.http.route import Route, url_patterns
from openai_api.keys.scopes import Scope
from openai_api.neuronpedia.activations import (
    activations_on_text,
    search_all,
    search_top_by_token,
    source_activations,
)
from openai_api.neuronpedia.features import (
    get_feature,
    search_all_explanations,
    search_model_explanations,
    search_source_explanations,
    stored_activations,
)
from openai_api.neuronpedia.schemas import (
    ActivationRequest,
    AllExplanationsRequest,
    ExplanationsBody,
    ModelExplanationsRequest,
    NeuronpediaActivationBody,
    NeuronpediaFeatureBody,
    SearchAllBody,
    SearchAllRequest,
    SourceActivationsListBody,
    SourceActivationsRequest,
    SourceExplanationsRequest,
    SteerBody,
    SteerChatBody,
    SteerChatRequest,
    SteerRequest,
    StoredActivationsRequest,
    TopKByTokenBody,
    TopKByTokenRequest,
)
from openai_api.neuronpedia.steering import steer_chat, steer_completion

_route = partial(Route, tag="Neuronpedia", error_body=neuronpedia_error)
_reading = partial(_route, scope=Scope.FEATURES, errors=(409, 504))
_search = partial(
    _route, scope=Scope.FEATURES, response=ExplanationsBody, returns="Features, best match first.", errors=(409,)
)

# fmt: off
ROUTES = (
    _route("GET", "/api/feature/{model:path}/{source:path}/{index}", get_feature, "getNeuronpediaFeature",
        "Get a feature (Neuronpedia)", response=NeuronpediaFeatureBody, scope=Scope.FEATURES, errors=(504,)),

    _route("POST", "/api/activation/get", stored_activations, "getNeuronpediaActivations",
        "Get the examples of a feature (Neuronpedia)", request=StoredActivationsRequest,
        response=list[NeuronpediaActivationBody], scope=Scope.FEATURES),
    _reading("POST", "/api/activation/new", activations_on_text, "createNeuronpediaActivation",
        "Read a feature's activations on texts (Neuronpedia)", request=ActivationRequest,
        response=NeuronpediaActivationBody, returns="The activations; for a list of texts, a list of them."),
    _reading("POST", "/api/activation/source", source_activations, "createNeuronpediaSourceActivations",
        "Read all features' activations on texts (Neuronpedia)", request=SourceActivationsRequest,
        response=SourceActivationsListBody),

    _reading("POST", "/api/search-all", search_all, "searchNeuronpediaTexts",
        "Find the strongest features on texts (Neuronpedia)", request=SearchAllRequest, response=SearchAllBody,
        returns="The features; for a list of texts, `results` with one answer each."),
    _reading("POST", "/api/search-topk-by-token", search_top_by_token, "searchNeuronpediaTokens",
        "Find the strongest features of each token (Neuronpedia)", request=TopKByTokenRequest,
        response=TopKByTokenBody, returns="The tokens; for a list of texts, `results` with one answer each."),

    _search("POST", "/api/explanation/search", search_source_explanations, "searchNeuronpediaSources",
        "Search the labels of SAEs (Neuronpedia)", request=SourceExplanationsRequest),
    _search("POST", "/api/explanation/search-model", search_model_explanations, "searchNeuronpediaModel",
        "Search the labels of a model's SAEs (Neuronpedia)", request=ModelExplanationsRequest),
    _search("POST", "/api/explanation/search-all", search_all_explanations, "searchNeuronpediaModels",
        "Search the labels of all SAEs (Neuronpedia)", request=AllExplanationsRequest),

    _route("POST", "/api/steer", steer_completion, "steerNeuronpediaCompletion",
        "Continue a text with and without steering (Neuronpedia)", request=SteerRequest, response=SteerBody,
        errors=(409, 504)),
    _route("POST", "/api/steer-chat", steer_chat, "steerNeuronpediaChat",
        "Answer a chat with and without steering (Neuronpedia)", request=SteerChatRequest, response=SteerChatBody,
        errors=(409, 504)),
)
# fmt: on

urlpatterns = url_patterns(ROUTES)
