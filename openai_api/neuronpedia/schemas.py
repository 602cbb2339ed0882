"""Requests and answers of Neuronpedia's API, with its field names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from openai_api.http.errors import invalid
from openai_api.schemas.base import IGNORED, NO_NUL, Harmless, Part, RequestSchema
from openai_api.schemas.features import MAX_INPUTS
from openai_api.schemas.generation import INT64_MAX, MAX_TOKENS
from openai_api.schemas.messages import MAX_MESSAGES
from steering.exchange.neuronpedia import METHODS
from steering.profiles.inline_edits import MAX_INLINE
from steering.spec.units import MAX_STRENGTH

MAX_NAME = 500
MAX_RESULTS = 100
MAX_SOURCES = 32
MAX_QUERY = 500
MAX_OFFSET = 10_000
MAX_MULTIPLIER = 10.0
_MAX_DIGITS = 9


def _index(value: Any) -> Any:
    """Return an index that was sent as a string as a number."""
    is_text = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS
    if not is_text and not (type(value) is int and 0 <= value < 10**_MAX_DIGITS):
        raise PydanticCustomError("invalid_index", "must be an integer of at least 0")
    return int(value)


def _kind_of_texts(value: Any) -> str:
    return "~list" if isinstance(value, list) else "~string"


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=NO_NUL)]
Index = Annotated[int, BeforeValidator(_index, json_schema_input_type=int | str)]
Text = Annotated[str, Field(min_length=1)]
TextOrTexts = Annotated[
    Annotated[Text, Tag("~string")] | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS), Tag("~list")],
    Discriminator(_kind_of_texts),
]
Query = Annotated[str, Field(min_length=1, max_length=MAX_QUERY, pattern=NO_NUL)]
Offset = Annotated[int | None, Field(ge=0, le=MAX_OFFSET, description="Number of results to skip.")]


class FeaturePlace(Part):
    modelId: Name
    layer: Name | None = Field(None, description="The source. Alternative: `source`.")
    source: Name | None = None
    index: Index

    @property
    def source_id(self) -> str:
        return self.source or self.layer or ""

    def check(self, path: str) -> None:
        """Raise MillmError 400 without a source; ``path`` is that of the object in the body."""
        if not self.source_id:
            raise invalid(f"`{path}.source` is required.", param=f"{path}.source", code="missing_required_parameter")


class ActivationRequest(RequestSchema):
    feature: FeaturePlace
    customText: TextOrTexts
    ignoreBos: Annotated[bool | None, IGNORED] = None

    TEXTS: ClassVar[tuple[str, ...]] = ("customText",)

    def check_together(self) -> None:
        self.feature.check("feature")


class StoredActivationsRequest(RequestSchema):
    modelId: Name
    source: Name
    index: Index


class SourceActivationsRequest(RequestSchema):
    modelId: Name
    source: Name
    customText: TextOrTexts

    TEXTS: ClassVar[tuple[str, ...]] = ("customText",)


class _TopFeaturesRequest(RequestSchema):
    modelId: Name
    text: TextOrTexts
    ignoreBos: bool | None = Field(None, description="Leave out the BOS token. Default: true.")
    densityThreshold: float | None = Field(
        None, ge=-1, lt=1, description="Leave out features that are active on a larger share of tokens. -1 or 0: off."
    )
    numResults: int | None = Field(None, ge=1, le=MAX_RESULTS)

    TEXTS: ClassVar[tuple[str, ...]] = ("text",)

    @property
    def ignores_bos(self) -> bool:
        return self.ignoreBos is not False

    @property
    def max_density(self) -> float | None:
        return self.densityThreshold if self.densityThreshold is not None and self.densityThreshold > 0 else None


class SearchAllRequest(_TopFeaturesRequest):
    sourceSet: Name | None = Field(None, description="The SAEs to search if `selectedLayers` is empty.")
    selectedLayers: list[Name] | None = Field(None, max_length=MAX_SOURCES)
    sortIndexes: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = Field(
        None, max_length=MAX_RESULTS, description="Sort by the sum of the values at these tokens. Default: by maximum."
    )

    def check_together(self) -> None:
        if not self.selectedLayers and self.sourceSet is None:
            raise invalid(
                "`selectedLayers` or `sourceSet` is required.", param="sourceSet", code="missing_required_parameter"
            )


class TopKByTokenRequest(_TopFeaturesRequest):
    source: Name


class AllExplanationsRequest(RequestSchema):
    query: Query
    offset: Offset = None

    TEXTS: ClassVar[tuple[str, ...]] = ("query",)


class ModelExplanationsRequest(AllExplanationsRequest):
    modelId: Name


class SourceExplanationsRequest(ModelExplanationsRequest):
    layers: list[Name] = Field(min_length=1, max_length=MAX_SOURCES)


class SteerFeature(FeaturePlace):
    strength: float = Field(ge=-MAX_STRENGTH, le=MAX_STRENGTH)


class _SteeringRequest(RequestSchema):
    modelId: Name
    features: list[SteerFeature] = Field(min_length=1, max_length=MAX_INLINE)
    temperature: float | None = Field(None, ge=0, le=2)
    n_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    freq_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-INT64_MAX - 1, le=INT64_MAX)
    strength_multiplier: float | None = Field(None, ge=0, le=MAX_MULTIPLIER, description="Default: 1.")
    steer_method: Literal["SIMPLE_ADDITIVE", "ORTHOGONAL_DECOMP"] | None = None

    REFUSED: ClassVar[Mapping[str, Harmless]] = {"axes": ([],), "isAssistantAxis": (False,), "stream": (False,)}

    def check_together(self) -> None:
        for number, feature in enumerate(self.features):
            feature.check(f"features[{number}]")

    @property
    def sampling(self) -> dict[str, Any]:
        """Return the sampling fields, with the names of /v1."""
        fields = {
            "temperature": self.temperature,
            "max_tokens": self.n_tokens,
            "frequency_penalty": self.freq_penalty,
            "seed": self.seed,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def edits(self, sources: Mapping[str, str], *, special_tokens: bool) -> dict[str, Any]:
        """Return the edits as inline ``steering`` of /v1. ``sources``: names of SAEs by the source that was sent."""
        factor = 1.0 if self.strength_multiplier is None else self.strength_multiplier
        features = [
            {
                "sae": sources[feature.source_id],
                "index": feature.index,
                "operation": METHODS[self.steer_method or "SIMPLE_ADDITIVE"],
                "strength": feature.strength * factor,
                "unit": "raw",
                "special_tokens": special_tokens,
                "sink_tokens": special_tokens,
            }
            for feature in self.features
        ]
        return {"features": features}


class SteerRequest(_SteeringRequest):
    prompt: Text


class SteerMessage(Part):
    role: Literal["user", "assistant", "model", "system", "developer"]
    content: str


class SteerChatRequest(_SteeringRequest):
    defaultChatMessages: list[SteerMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    steeredChatMessages: list[SteerMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    steer_special_tokens: bool | None = Field(None, description="Default: true.")

    TEXTS: ClassVar[tuple[str, ...]] = ("defaultChatMessages", "steeredChatMessages")


class NeuronpediaErrorBody(TypedDict):
    message: str
    param: str | None
    code: str | None


class ExplanationBody(TypedDict):
    """``explanationModelName`` is who or what wrote it."""

    modelId: str
    layer: str
    source: str
    index: str
    description: str
    typeName: str | None
    explanationModelName: str | None


class NeuronBody(TypedDict):
    """What a search tells of a feature. ``frac_nonzero`` and ``maxActApprox`` are null where they were not measured."""

    modelId: str
    layer: str
    index: str
    frac_nonzero: float | None
    maxActApprox: float | None
    explanations: list[ExplanationBody]


class NeuronpediaActivationBody(TypedDict):
    """A text with one activation per token."""

    modelId: str
    layer: str
    source: str
    index: str
    tokens: list[str]
    values: list[float]
    maxValue: float
    maxValueTokenIndex: int
    minValue: float
    binMin: float | None
    binMax: float | None
    binContains: float | None


class NeuronpediaFeatureBody(NeuronBody):
    """``pos_str`` and ``neg_str`` are the tokens of the logit lens, empty where the model's files do not allow one."""

    sourceSetName: str
    hookName: str
    hasVector: Literal[False]
    activations: list[NeuronpediaActivationBody]
    pos_str: list[str]
    pos_values: list[float]
    neg_str: list[str]
    neg_values: list[float]
    freq_hist_data_bar_values: list[float]
    freq_hist_data_bar_heights: list[int]


class SourceActivationsBody(TypedDict):
    """``activeFeatures`` has [token, activation] pairs by feature."""

    tokens: list[str]
    activeFeatures: dict[str, list[tuple[int, float]]]


class SourceActivationsListBody(TypedDict):
    results: list[SourceActivationsBody]


class FoundNeuronBody(TypedDict):
    modelId: str
    layer: str
    index: str
    values: list[float]
    maxValue: float
    maxValueIndex: int
    neuron: NeuronBody | None


class SearchAllBody(TypedDict):
    tokens: list[str]
    result: list[FoundNeuronBody]
    sortIndexes: list[int]


class SearchAllListBody(TypedDict):
    results: list[SearchAllBody]


class TopFeatureBody(TypedDict):
    featureIndex: int
    activationValue: float
    feature: NeuronBody | None


class TokenTopFeaturesBody(TypedDict):
    position: int
    token: str
    isSpecial: bool
    topFeatures: list[TopFeatureBody]


class TopKByTokenBody(TypedDict):
    source: str
    results: list[TokenTopFeaturesBody]


class TopKByTokenListBody(TypedDict):
    results: list[TopKByTokenBody]


class FoundExplanationBody(ExplanationBody):
    """``relevance`` is 1 for the best match."""

    relevance: float | None
    neuron: NeuronBody


class ExplanationsBody(TypedDict):
    """``nextOffset`` is null on the last page."""

    request: dict[str, Any]
    results: list[FoundExplanationBody]
    resultsCount: int
    hasMore: bool
    nextOffset: int | None


class TopLogprob(TypedDict):
    token: str
    logprob: float


class SteeredLogprob(TopLogprob):
    topLogprobs: list[TopLogprob]


class SteerBody(TypedDict):
    """``STEERED`` and ``DEFAULT`` are the prompt and its continuation. ``shareUrl`` is the request's log row."""

    STEERED: str
    DEFAULT: str
    steeredLogProbs: list[SteeredLogprob]
    defaultLogProbs: list[SteeredLogprob]
    id: str
    shareUrl: str
    limit: str | None


class ChatMessageBody(TypedDict):
    role: str
    content: str


class SteeredChatBody(TypedDict):
    """``raw`` is the whole chat as the model read and wrote it; both lists have the messages and the reply."""

    raw: str
    chatTemplate: list[ChatMessageBody]
    chat_template: list[ChatMessageBody]
    logprobs: list[SteeredLogprob]


class SteerChatBody(TypedDict):
    """``shareUrl`` is the request's log row."""

    STEERED: SteeredChatBody
    DEFAULT: SteeredChatBody
    id: str
    shareUrl: str
    limit: str | None
    settings: dict[str, Any]
