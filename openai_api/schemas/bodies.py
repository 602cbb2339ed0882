"""Response bodies of /v1. The code builds these dicts, and the OpenAPI document is generated from them."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

ChatFinish = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
CompletionFinish = Literal["stop", "length", "content_filter"]


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class UsageBody(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class SiteEffectBody(TypedDict):
    """The effect of steering at one site.

    ``tokens``: tokens that edits apply to. ``changed_share``: share of them that changed. ``mean_change``: mean of
    |h' - h| / |h| over them; null if a residual is too large for its norm to be computed.
    """

    site: str
    tokens: int
    changed_share: float
    mean_change: float | None


class JointRemovalBody(TypedDict):
    """Directions that are removed together at one site, and the dimension of their span."""

    site: str
    directions: int
    dimensions: int


class InertEditBody(TypedDict):
    """An edit, by its index in the profile, that can never have an effect, and why."""

    edit: int
    reason: str


class SteeringBody(TypedDict):
    expected: int
    applied: int
    sites: list[SiteEffectBody]
    removed_together: NotRequired[list[JointRemovalBody]]
    without_effect: NotRequired[list[InertEditBody]]


class FeatureActivationBody(TypedDict):
    index: int
    value: float


class TokenActivationsBody(TypedDict):
    """Feature activations at one token. ``place``: position from the start of the prompt. ``index``: the choice."""

    index: int
    place: int
    phase: Literal["prompt", "completion"]
    id: int
    token: str
    features: list[FeatureActivationBody]


class ActivationsBody(TypedDict):
    """The field ``millm`` of unsteered requests, and of streams before their last chunk."""

    activations: list[TokenActivationsBody]


class AutoStrengthBody(TypedDict):
    """The number that the strength `auto` of an inline edit stood for; ``edit`` is its position, from 0."""

    edit: int
    strength: float
    unit: str


class MillmBody(TypedDict):
    """The steering that was applied, with the number of layer applications expected and made.

    ``profile``: name@version, `inline` for inline edits, or null if only the server's ``policies`` applied.
    ``auto_strengths``: present if inline edits had the strength `auto`.
    """

    profile: str | None
    fingerprint: str
    policies: list[str]
    intensity: float
    steering: SteeringBody
    auto_strengths: NotRequired[list[AutoStrengthBody]]
    activations: NotRequired[list[TokenActivationsBody]]


class TopLogprobBody(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(TopLogprobBody):
    top_logprobs: list[TopLogprobBody]


class ChatLogprobsBody(TypedDict):
    content: list[TokenLogprobBody] | None
    refusal: list[TokenLogprobBody] | None


class PromptLogprobBody(TypedDict):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobsBody = list[dict[str, PromptLogprobBody] | None]  # by token id; an extension of vLLM


class FunctionCallBody(TypedDict):
    name: str
    arguments: str


class ToolCallBody(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionCallBody


class MessageBody(TypedDict):
    """The reasoning has two names, because clients differ in the one they read."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: NotRequired[list[ToolCallBody]]
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]


class ChatChoiceBody(TypedDict):
    index: int
    message: MessageBody
    logprobs: ChatLogprobsBody | None
    finish_reason: ChatFinish


class ChatCompletionBody(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoiceBody]
    usage: UsageBody
    system_fingerprint: str
    prompt_logprobs: NotRequired[PromptLogprobsBody]
    millm: NotRequired[MillmBody | ActivationsBody]


class FunctionDeltaBody(TypedDict, total=False):
    name: str
    arguments: str


class ToolCallDeltaBody(TypedDict):
    """Id, type and name are only in the first delta of a tool call."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDeltaBody


class DeltaBody(TypedDict, total=False):
    role: Literal["assistant"]
    content: str
    tool_calls: list[ToolCallDeltaBody]
    reasoning_content: str
    reasoning: str


class ChunkChoiceBody(TypedDict):
    index: int
    delta: DeltaBody
    logprobs: ChatLogprobsBody | None
    finish_reason: ChatFinish | None


class ChatChunkBody(TypedDict):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoiceBody]
    system_fingerprint: str
    usage: NotRequired[UsageBody | None]
    prompt_logprobs: NotRequired[PromptLogprobsBody]
    millm: NotRequired[MillmBody | ActivationsBody]


class CompletionLogprobsBody(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoiceBody(TypedDict):
    """Streamed chunks have the same shape, with a null finish_reason until the end."""

    index: int
    text: str
    logprobs: CompletionLogprobsBody | None
    finish_reason: CompletionFinish | None
    prompt_logprobs: NotRequired[PromptLogprobsBody]


class CompletionBody(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoiceBody]
    system_fingerprint: str
    usage: NotRequired[UsageBody | None]
    millm: NotRequired[MillmBody | ActivationsBody]


class EmbeddingBody(TypedDict):
    """``embedding`` is a list of numbers, or their float32 bytes in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsageBody(TypedDict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsBody(TypedDict):
    object: Literal["list"]
    data: list[EmbeddingBody]
    model: str
    usage: EmbeddingUsageBody


class ModelBody(TypedDict):
    """``num_layers`` and ``hidden_size`` (values of a residual) are null unless it is a loaded generation model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    kind: str
    is_default: bool
    state: str
    max_model_len: int | None
    num_layers: int | None
    hidden_size: int | None
    aliases: list[str]
    default_profile: str | None


class ModelListBody(TypedDict):
    object: Literal["list"]
    data: list[ModelBody]


class ModelDeletedBody(TypedDict):
    id: str
    object: Literal["model"]
    deleted: bool


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    error: ErrorDetail
