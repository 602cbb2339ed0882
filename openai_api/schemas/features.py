"""POST /v1/features/search and GET /v1/features/{sae}/{index}: request and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from openai_api.http.errors import invalid
from openai_api.schemas.activations import MAX_DIRECTIONS, CaptureFields, DirectionField, TokenSelection
from openai_api.schemas.base import Harmless, RequestSchema
from openai_api.schemas.bodies import FeatureActivationBody, MillmBody, UsageBody
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.generation import SteeredSchema, TokenId
from openai_api.schemas.messages import MAX_MESSAGES, Message
from openai_api.schemas.prompts import Prompts


class FeatureSearchRequest(RequestSchema):
    query: str = Field(
        min_length=1,
        max_length=500,
        pattern=r"^[^\x00]*$",
        description='Words or prefixes of words, "a phrase", or, -exclude; or the index of a feature.',
    )
    model: str | None = Field(None, description="Search only SAEs of this model.")
    sae: str | None = Field(None, max_length=200, description="Search only this SAE.")
    limit: int | None = Field(None, ge=1, le=100, description="Default: 20.")
    offset: int | None = Field(None, ge=0, le=10_000, description="Number of results to skip.")
    embedding_model: str | None = Field(
        None, max_length=200, description="Also search by meaning, with the labels embedded by this registered model."
    )
    meaning: bool | None = Field(
        None,
        description="Also search by meaning, with the token embeddings of the SAE's own model. Default: false.",
    )
    sort: Literal["relevance", "steers_well"] | None = Field(
        None, description="Order of the results; `steers_well` needs measured effects. Default: `relevance`."
    )
    user: str | None = Field(None, max_length=512, description="Stored in the request log.")

    def check_together(self) -> None:
        super().check_together()
        if self.meaning and self.embedding_model is not None:
            raise invalid("Send either `meaning` or `embedding_model`.", param="meaning")


class OutputTokenBody(TypedDict):
    """A token that steering with a feature makes likely, and its part of the divergence in nats."""

    token: str
    value: float


class FeatureBody(TypedDict):
    """``relevance`` of a search, 0 to 1: by words relative to the best match; by meaning the cosine similarity of query
    and label, null for a match by words whose label has no embedding. ``steers_well`` (0 to 1) is null where the effect
    was not measured; ``label_score`` is the accuracy of an automatic label, null for others. ``output_tokens`` is empty
    where they were not measured."""

    object: Literal["feature"]
    sae: str
    model: str
    index: int
    label: str
    description: str
    source: str
    max_activation: float | None
    density: float | None
    top_tokens: list[str]
    output_tokens: list[OutputTokenBody]
    label_score: float | None
    relevance: float | None
    steers_well: float | None


class FeatureListBody(TypedDict):
    object: Literal["list"]
    data: list[FeatureBody]
    has_more: bool


class FeatureExampleBody(TypedDict):
    tokens: list[str]
    values: list[float]
    max_value: float


class ExampleBandBody(TypedDict):
    """Examples with a largest activation above ``low`` and at most ``high`` times that of the feature."""

    low: float
    high: float
    num_texts: int
    examples: list[FeatureExampleBody]


class HistogramBody(TypedDict):
    """``counts[i]`` is the number of activations in the interval (``i * width``, ``(i + 1) * width``]."""

    width: float
    counts: list[int]


class LensTokenBody(TypedDict):
    id: int
    token: str
    logit: float


class LogitLensBody(TypedDict):
    """The tokens whose logits the feature's direction raises and lowers the most."""

    promoted: list[LensTokenBody]
    suppressed: list[LensTokenBody]


class QuantilesBody(TypedDict):
    """p99 and p99.9 of the feature's ``n`` activations above 0 on the corpus: the units `p99` and `p999`."""

    p99: float
    p999: float
    n: int
    corpus: str


class FeatureExplanationBody(TypedDict):
    """An explanation of a feature beside its label. ``source``: who or what wrote it, may be empty."""

    text: str
    source: str


class FeatureDetailBody(FeatureBody):
    """``explanations`` are other ones than the label, those with most votes first. ``activation_quantiles`` is null if
    the SAE was not measured, or the feature never active. ``logit_lens`` is null if it was not requested or not
    possible; see ``logit_lens_error``."""

    explanations: list[FeatureExplanationBody]
    layer: int
    site: str
    decoder_norm: float | None
    max_activation_source: Literal["import", "measured"] | None
    examples: list[FeatureExampleBody]
    examples_source: str
    example_bands: list[ExampleBandBody]
    histogram: HistogramBody | None
    activation_quantiles: QuantilesBody | None
    logit_lens: LogitLensBody | None
    logit_lens_error: str | None


class EffectSampleBody(TypedDict):
    prompt: str
    before: str
    after: str


class FeatureEffectBody(TypedDict):
    """The measured effect of adding a feature at its calibrated strength (raw ``strength``).

    ``curve`` has the strengths that were tried, with their KL(unsteered || steered) in nats per token. The activations
    are the feature's own on the samples, read without steering, relative to its max activation.
    """

    object: Literal["feature.effect"]
    sae: str
    index: int
    strength: float
    strength_in_max_act: float | None
    kl: float
    push: float
    is_capped: bool
    output_score: float | None
    base_output_score: float | None
    steered_activation: float | None
    base_activation: float | None
    fluency: float | None
    steers_well: float
    curve: list[tuple[float, float]]
    samples: list[EffectSampleBody]
    measured_at: str


class CofiringFeatureBody(TypedDict):
    """``phi``: correlation of "active" with the other feature, 0 to 1. ``tokens``: how often both are active."""

    index: int
    label: str | None
    phi: float
    tokens: int


class CofiringBody(TypedDict):
    """Largest phi first, counted on ``num_tokens`` tokens of the corpus that the SAE was measured on."""

    object: Literal["list"]
    sae: str
    index: int
    num_tokens: int
    data: list[CofiringFeatureBody]


class NeighbourBody(TypedDict):
    """``cosine`` is that of the decoder rows; ``label`` is null if the feature has none."""

    index: int
    label: str | None
    cosine: float


class NeighboursBody(TypedDict):
    object: Literal["list"]
    sae: str
    index: int
    data: list[NeighbourBody]


MAX_INPUTS = 128
MAX_COMPLETION = 4096


class CapturedTextsRequest(SteeredSchema, TokenSelection):
    """Texts or a chat to run through the model, with the tokens to read."""

    input: Prompts | None = Field(None, description="Texts or token ids. Alternative: `messages`.")
    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = Field(
        None, ge=0, le=MAX_COMPLETION, description="Number of tokens to generate greedily after the input. Default: 0."
    )

    REFUSED: ClassVar[Mapping[str, Harmless]] = {"prompt": (), "stream": (False,)}
    REMEDIES: ClassVar[Mapping[str, str]] = {"prompt": "Use `input` instead."}

    def check_together(self) -> None:
        super().check_together()
        if (self.input is None) == (self.messages is None):
            raise invalid("Send either `input` or `messages`.", param="input")
        if self.input is not None and len(self.input) > MAX_INPUTS:
            raise invalid(f"`input` must have at most {MAX_INPUTS} texts, got {len(self.input)}.", param="input")
        if self.phase == "completion" and not self.max_tokens:
            raise invalid("`max_tokens` must be at least 1 if `phase` is `completion`.", param="max_tokens")

    def chat(self) -> ChatRequest:
        """Return the messages as those of a chat request."""
        assert self.messages is not None, "the caller checks that there are messages"
        return ChatRequest(model=self.model, messages=self.messages)


class FeatureActivationsRequest(CapturedTextsRequest, CaptureFields):
    directions: list[DirectionField] | None = Field(
        None,
        min_length=1,
        max_length=MAX_DIRECTIONS,
        description="Vectors and linear probes to read. Without `sae`, `features` and `top_k`, no SAE is read.",
    )

    REMEDIES: ClassVar[Mapping[str, str]] = {
        **CapturedTextsRequest.REMEDIES,
        "stream": "Use `return_activations` of /v1/chat/completions.",
    }


class LabelledActivationBody(FeatureActivationBody):
    """``label`` is null if the feature has none."""

    label: str | None


class TokenFeaturesBody(TypedDict):
    place: int
    phase: Literal["prompt", "completion"]
    id: int
    token: str
    features: list[LabelledActivationBody]
    directions: NotRequired[list[float]]


class DirectionBody(TypedDict):
    name: str | None
    layer: int
    site: str


class InputActivationsBody(TypedDict):
    """``completion``: the text generated after the input, if any."""

    index: int
    tokens: list[TokenFeaturesBody]
    completion: str | None


class FeatureActivationsBody(TypedDict):
    object: Literal["list"]
    model: str
    sae: str | None
    layer: int | None
    site: str | None
    directions: NotRequired[list[DirectionBody]]
    stage: Literal["pre", "post"]
    data: list[InputActivationsBody]
    usage: UsageBody
    millm: NotRequired[MillmBody]


MAX_TEXTS = 64
MAX_CANDIDATES = 64
DEFAULT_TOP_K = 10
DEFAULT_CANDIDATES = 20


class FeatureContrastRequest(RequestSchema):
    model: str
    positive: Prompts
    negative: Prompts
    sae: str | None = Field(None, min_length=1, max_length=200, description="Required if the model has several SAEs.")
    top_k: int | None = Field(None, ge=1, le=MAX_CANDIDATES, description=f"Default: {DEFAULT_TOP_K}.")
    rerank: bool | None = Field(None, description="Rerank features by their effect on the output. Default: true.")
    candidates: int | None = Field(
        None, ge=1, le=MAX_CANDIDATES, description="Number of best-separating features whose effect is measured."
    )
    special_tokens: bool | None = Field(None, description="Include special tokens. Default: false.")
    user: str | None = Field(None, max_length=512, description="Stored in the request log.")

    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        "profile": (),
        "steering": (),
        "steering_intensity": (),
        "stream": (False,),
    }

    def check_together(self) -> None:
        for name, texts in (("positive", self.positive), ("negative", self.negative)):
            if len(texts) > MAX_TEXTS:
                raise invalid(f"`{name}` must have at most {MAX_TEXTS} texts, got {len(texts)}.", param=name)
        if self.rerank is False and self.candidates is not None:
            raise invalid("`candidates` requires `rerank`.", param="candidates")
        if self.candidates is not None and self.candidates < self.num_features:
            raise invalid(
                f"`candidates` must be at least `top_k` ({self.num_features}), got {self.candidates}.",
                param="candidates",
            )

    @property
    def num_features(self) -> int:
        return self.top_k or DEFAULT_TOP_K

    @property
    def num_candidates(self) -> int:
        if self.rerank is False:
            return self.num_features
        return self.candidates or max(DEFAULT_CANDIDATES, self.num_features)


class ContrastedFeatureBody(TypedDict):
    """A feature with its mean activation on both sides.

    ``separation``: probability that a positive text has a higher activation than a negative one. ``effect``: mean loss
    of log-probability, in nats per token, of the side with the higher activation when the feature is ablated; null
    without `rerank`.
    """

    index: int
    label: str | None
    positive: float
    negative: float
    difference: float
    separation: float
    effect: float | None


class FeatureContrastBody(TypedDict):
    object: Literal["list"]
    model: str
    sae: str
    layer: int
    site: str
    data: list[ContrastedFeatureBody]
    usage: UsageBody


MAX_PROMPT_TOKENS = 1_000_000  # the model's context is less
MAX_ANSWER_TOKENS = 4096


class InspectionRequest(SteeredSchema):
    """The prompt and the answer as tokens, with what steered when it was written."""

    kind: Literal["chat", "completion"]
    prompt_ids: list[TokenId] = Field(min_length=1, max_length=MAX_PROMPT_TOKENS)
    completion_ids: list[TokenId] = Field(min_length=1, max_length=MAX_ANSWER_TOKENS)
    sae: str | None = Field(None, min_length=1, max_length=200)
    feature: int | None = Field(None, ge=0, lt=2**31)

    TEXTS: ClassVar[tuple[str, ...]] = ("prompt_ids", "completion_ids")


class InspectionBody(TypedDict):
    """Each list has an entry for each token of the answer.

    ``kl`` is KL(steered || unsteered) in nats over the whole vocabulary, null where nothing steered. ``values`` are the
    feature's, null where none was asked for, and at a token that the model never read: the last.
    """

    kl: list[float] | None
    logprobs: list[float]
    unsteered_logprobs: list[float]
    values: list[float | None] | None
    millm: MillmBody | None
