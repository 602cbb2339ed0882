"""POST /v1/logit_lens and /v1/attribution: requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from inference.analyses import MAX_NODES, Metric
from openai_api.http.errors import invalid
from openai_api.schemas.activations import MAX_RANGES, Range
from openai_api.schemas.base import Harmless
from openai_api.schemas.bodies import MillmBody, UsageBody
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.generation import SteeredSchema, TokenId
from openai_api.schemas.messages import MAX_MESSAGES, Message

MAX_LAYERS = 512
MAX_TOP_K = 50
DEFAULT_TOP_K = 5
DEFAULT_NODES = 200
MAX_IDS = 1_000_000  # the model's context is less
MAX_TOKEN_TEXT = 1000


def _text(value: Any) -> Any:
    if isinstance(value, str) or (
        isinstance(value, list) and value and all(type(item) is int and item >= 0 for item in value)
    ):
        return value
    raise PydanticCustomError("invalid_prompt", "must be one text, or a list of token ids")


def _token(value: Any) -> Any:
    if (isinstance(value, str) and 0 < len(value) <= MAX_TOKEN_TEXT) or (type(value) is int and value >= 0):
        return value
    raise PydanticCustomError("invalid_token", "must be a token id, or the text of one token")


_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
Text = Annotated[str | list[int], BeforeValidator(_text), WithJsonSchema({"anyOf": [{"type": "string"}, _IDS]})]
Token = Annotated[str | int, BeforeValidator(_token)]


class AnalysedTextRequest(SteeredSchema):
    """One text or chat, possibly with tokens that follow it."""

    input: Text | None = Field(None, description="A text or its token ids. Alternative: `messages`.")
    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    completion_ids: list[TokenId] | None = Field(
        None,
        min_length=1,
        max_length=MAX_IDS,
        description="Tokens after the input, steered as generated ones: those of an answer.",
    )

    TEXTS: ClassVar[tuple[str, ...]] = ("input", "messages", "completion_ids")
    REFUSED: ClassVar[Mapping[str, Harmless]] = {"prompt": (), "stream": (False,), "max_tokens": (0,)}
    REMEDIES: ClassVar[Mapping[str, str]] = {
        "prompt": "Use `input` instead.",
        "max_tokens": "Generate the text first, and send its tokens as `completion_ids`.",
    }

    def check_together(self) -> None:
        super().check_together()
        if (self.input is None) == (self.messages is None):
            raise invalid("Send either `input` or `messages`.", param="input")

    def chat(self) -> ChatRequest:
        """Return the messages as those of a chat request."""
        assert self.messages is not None, "the caller checks that there are messages"
        return ChatRequest(model=self.model, messages=self.messages)


class LogitLensRequest(AnalysedTextRequest):
    layers: list[Annotated[int, Field(ge=0)]] | None = Field(
        None, min_length=1, max_length=MAX_LAYERS, description="Layers after which to predict, each once. Default: all."
    )
    ranges: list[Range] | None = Field(
        None, min_length=1, max_length=MAX_RANGES, description="Places [start, end), from 0. Default: all tokens."
    )
    top_k: int | None = Field(
        None, ge=1, le=MAX_TOP_K, description=f"Most likely tokens of each layer. Default: {DEFAULT_TOP_K}."
    )

    def check_together(self) -> None:
        super().check_together()
        if self.layers is not None and len(set(self.layers)) < len(self.layers):
            raise invalid("`layers` lists a layer twice.", param="layers")


class AttributionRequest(AnalysedTextRequest):
    sae: str | None = Field(None, min_length=1, max_length=200, description="Required if the model has several SAEs.")
    position: int | None = Field(
        None, ge=0, description="Place of the token whose prediction is explained, from 0. Default: the last."
    )
    token: Token | None = Field(
        None, description="The explained next token: id or text. Default: the one that follows, or the most likely."
    )
    contrast: Token | None = Field(None, description="Explain why `token` was more likely than this one.")
    metric: Metric | None = Field(
        None,
        description="logit: the token's logit minus the mean of all. logprob: its log-probability. Default: logit.",
    )
    max_nodes: int | None = Field(
        None, ge=1, le=MAX_NODES, description=f"Nodes of features in the answer. Default: {DEFAULT_NODES}."
    )
    response_format: Literal["json", "circuit_tracer"] | None = Field(
        None, description="circuit_tracer: a graph for circuit-tracer's viewer. Default: json."
    )

    def check_together(self) -> None:
        super().check_together()
        if self.contrast is not None and self.metric == "logprob":
            raise invalid("`contrast` compares logits. Leave `metric` out.", param="metric")


class LensTopBody(TypedDict):
    id: int
    token: str
    logprob: float


class LensNextBody(TypedDict):
    """The token that follows in the text: ``rank`` is 1 for the most likely one."""

    logprob: float
    rank: int


class LayerLensBody(TypedDict):
    """``next`` is null at the last token."""

    layer: int
    top: list[LensTopBody]
    next: LensNextBody | None


class TokenLensBody(TypedDict):
    position: int
    id: int
    token: str
    next: str | None
    layers: list[LayerLensBody]


class TextLensBody(TypedDict):
    object: Literal["logit_lens"]
    model: str
    token_ids: list[int]
    data: list[TokenLensBody]
    usage: UsageBody
    millm: NotRequired[MillmBody]


class TargetBody(TypedDict):
    """``logit`` and ``logprob`` are null for a contrast."""

    id: int
    token: str
    logit: float | None
    logprob: float | None


class FeatureNodeBody(TypedDict):
    """A feature at a token. ``attribution``: activation times the gradient of the metric."""

    index: int
    label: str | None
    position: int
    activation: float
    attribution: float


class OtherNodesBody(TypedDict):
    """The active features that are not listed, over all tokens."""

    count: int
    attribution: float


class AttributionBody(TypedDict):
    """All attributions, ``other``, ``errors`` and ``biases`` add up to ``total``.

    ``errors`` (the part of the residual that the SAE does not reconstruct) and ``biases`` (its decoder bias) have an
    entry for each token up to ``position``. At the ``skipped_positions`` (special tokens, the first token, attention
    sinks), which SAEs are not trained on, the whole residual is its error. ``value`` is the metric itself.
    """

    object: Literal["attribution"]
    model: str
    sae: str
    layer: int
    site: str
    metric: Metric
    value: float
    position: int
    token_ids: list[int]
    tokens: list[str]
    target: TargetBody
    contrast: TargetBody | None
    features: list[FeatureNodeBody]
    other: OtherNodesBody
    errors: list[float]
    biases: list[float]
    skipped_positions: list[int]
    total: float
    usage: UsageBody
    millm: NotRequired[MillmBody]
