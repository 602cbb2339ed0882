"""Requests and responses of Ollama's API. ``conversion.py`` turns the requests into those of /v1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from openai_api.http.errors import invalid, unknown_parameter, unsupported_parameter
from openai_api.keys.record import MAX_INTENSITY
from openai_api.schemas.base import IGNORED, MAX_NAME, NEAR, OWN_FIELDS, Harmless, Part, RequestSchema
from openai_api.schemas.bodies import MillmBody
from openai_api.schemas.chat import MAX_TOP_LOGPROBS
from openai_api.schemas.generation import MAX_TOKENS, logged_steering
from openai_api.schemas.messages import MAX_MESSAGES, MAX_TOOL_CALLS
from openai_api.schemas.prompts import MAX_PROMPTS
from openai_api.schemas.tools import MAX_TOOLS

STEERED = ("profile", "steering", "steering_intensity")  # here null differs from an absent field
NO_IMAGES = "No text model of this server takes images."


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class OllamaOptions(Part):
    """Ollama's `options`. Ranges are those of chat completions."""

    num_predict: int | None = Field(
        None, ge=-2, le=MAX_TOKENS, description="Maximum number of tokens. 0 or less: until the context is full."
    )
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = Field(None, description="-1: random.")
    stop: Annotated[list[str] | None, BeforeValidator(_as_list)] = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = Field(
        None, ge=-1, description="-1: all tokens, 0: no penalty. Other values are refused beside `repeat_penalty`."
    )
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: Literal[0] | None = None
    tfs_z: float | None = Field(None, ge=1, le=1)

    profile: str | None = Field(None, min_length=1, max_length=200, description="As beside `options`.")
    steering: dict[str, Any] | None = Field(None, description="As beside `options`.")
    steering_intensity: float | None = Field(None, ge=0, le=MAX_INTENSITY, description="As beside `options`.")

    draft_num_predict: Annotated[int | None, IGNORED] = None
    embedding_only: Annotated[bool | None, IGNORED] = None
    f16_kv: Annotated[bool | None, IGNORED] = None
    logits_all: Annotated[bool | None, IGNORED] = None
    low_vram: Annotated[bool | None, IGNORED] = None
    main_gpu: Annotated[int | None, IGNORED] = None
    mirostat_eta: Annotated[float | None, IGNORED] = None
    mirostat_tau: Annotated[float | None, IGNORED] = None
    num_batch: Annotated[int | None, IGNORED] = None
    num_ctx: Annotated[int | None, IGNORED] = None
    num_gpu: Annotated[int | None, IGNORED] = None
    num_keep: Annotated[int | None, IGNORED] = None
    num_thread: Annotated[int | None, IGNORED] = None
    numa: Annotated[bool | None, IGNORED] = None
    penalize_newline: Annotated[bool | None, IGNORED] = None
    use_mlock: Annotated[bool | None, IGNORED] = None
    use_mmap: Annotated[bool | None, IGNORED] = None
    vocab_only: Annotated[bool | None, IGNORED] = None

    def check_together(self) -> None:
        """Raise MillmError 400 for a window of the penalty, which this server does not have."""
        if self.repeat_last_n is not None and self.repeat_last_n > 0 and self.repeat_penalty not in {None, 1}:
            raise unsupported_parameter(
                "options.repeat_last_n", "The penalty covers all tokens: send -1, or leave it out."
            )


KeepAlive = Annotated[float | str | None, IGNORED]


class OllamaRequest(RequestSchema):
    """The fields that all requests share."""

    model: str
    options: OllamaOptions | None = None
    keep_alive: KeepAlive = Field(
        None, description="Only 0 without a prompt takes effect: it unloads the model. The server has its own setting."
    )

    def check_together(self) -> None:
        super().check_together()
        if self.options is not None:
            self.options.check_together()

    @property
    def unloads(self) -> bool:
        """Return whether `keep_alive` says that the model is not needed any longer."""
        return _is_zero(self.keep_alive)

    def parameters(self) -> dict[str, Any]:
        """Like :meth:`RequestSchema.parameters`, with vectors as /v1 logs them."""
        found = super().parameters()
        options = dict(found.get("options", {}))
        options.pop("profile", None)  # the row has it
        for place in (found, options):
            if "steering" in place:
                place["steering"] = logged_steering(place["steering"])
        return {**found, "options": options} if options else {k: v for k, v in found.items() if k != "options"}

    @classmethod
    def ignored_in(cls, body: Mapping[str, Any]) -> list[str]:
        unloads = _is_zero(body.get("keep_alive")) and not any(body.get(name) for name in cls.TEXTS)
        names = [name for name in super().ignored_in(body) if name != "keep_alive" or not unloads]
        return [*names, *_ignored_options(body.get("options"))]

    @classmethod
    def _refuse_near_misses(cls, body: Mapping[str, Any]) -> None:
        """Also refuse likely typos of steering fields among the options."""
        super()._refuse_near_misses(body)
        options = body.get("options")
        for name in options if isinstance(options, dict) else ():
            meant = get_close_matches(name[:MAX_NAME], OWN_FIELDS & OllamaOptions.model_fields.keys(), n=1, cutoff=NEAR)
            if meant and name not in OllamaOptions.model_fields:
                raise unknown_parameter(f"options.{name}", meant=f"options.{meant[0]}")


def _is_zero(keep_alive: Any) -> bool:
    """Return whether it is zero, as a number or as a duration such as `0s`."""
    return keep_alive.strip("hmnsuµ") in {"0", "0.0"} if isinstance(keep_alive, str) else keep_alive == 0


def _ignored_options(options: Any) -> Iterator[str]:
    for name, value in options.items() if isinstance(options, dict) else ():
        field = OllamaOptions.model_fields.get(name)
        if value is not None and (field is None or IGNORED in field.metadata):
            yield f"options.{name}"


def _read_format(value: Any) -> Any:
    if value is None or value in ("", "json") or isinstance(value, dict):
        return value
    raise PydanticCustomError("invalid_format", "must be `json` or a JSON schema")


def _read_think(value: Any) -> Any:
    if value is None or isinstance(value, bool) or value in EFFORTS:
        return value
    raise PydanticCustomError("invalid_think", f"must be true, false, or one of {', '.join(EFFORTS)}")


EFFORTS = ("low", "medium", "high", "max")
Format = Annotated[
    Any,
    BeforeValidator(_read_format),
    WithJsonSchema({"anyOf": [{"enum": ["", "json"]}, {"type": "object"}, {"type": "null"}]}),
]
Think = Annotated[
    Any,
    BeforeValidator(_read_think),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": list(EFFORTS)}, {"type": "null"}]}),
]


class SteeredRequest(OllamaRequest):
    """The fields of requests that generate text."""

    stream: bool | None = Field(None, description="By default true.")
    format: Format = Field(None, description="`json`, or a JSON schema that the answer follows.")
    think: Think = Field(None, description="Whether to reason, or how much. Refused for models without reasoning.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    profile: str | None = Field(None, min_length=1, max_length=200, description="As for chat completions.")
    steering: dict[str, Any] | None = Field(None, description="As for chat completions.")
    steering_intensity: float | None = Field(None, ge=0, le=MAX_INTENSITY, description="As for chat completions.")

    shift: Annotated[bool | None, IGNORED] = None
    truncate: Annotated[bool | None, IGNORED] = None

    def check_together(self) -> None:
        super().check_together()
        if self.top_logprobs and not self.logprobs:
            raise invalid("`top_logprobs` requires `logprobs` to be true.", param="top_logprobs")
        options = self.options
        for name in STEERED if options is not None else ():
            if {name} <= self.model_fields_set & options.model_fields_set and (  # type: ignore[union-attr]
                getattr(self, name) != getattr(options, name)
            ):
                raise invalid(f"`{name}` and `options.{name}` differ. Send only one of them.", param=name)

    @property
    def steering_fields(self) -> dict[str, Any]:
        """Return the fields of steering that were sent, beside the options or among them."""
        places = [place for place in (self.options, self) if place is not None]
        return {name: getattr(place, name) for place in places for name in STEERED if name in place.model_fields_set}


def _no_images(value: Any) -> Any:
    if value:
        raise PydanticCustomError("unsupported_parameter", f"is not supported. {NO_IMAGES}")
    return value


class OllamaCalledFunction(Part):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: dict[str, Any] = {}


class OllamaToolCall(Part):
    id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    function: OllamaCalledFunction


class OllamaMessage(Part):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = Field(None, description="Reasoning of an earlier answer.")
    images: Annotated[list[Any] | None, BeforeValidator(_no_images)] = None
    tool_calls: list[OllamaToolCall] | None = Field(None, max_length=MAX_TOOL_CALLS)
    tool_name: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        None, description="The function whose result this is."
    )
    tool_call_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None


class OllamaChatRequest(SteeredRequest):
    messages: list[OllamaMessage] | None = Field(
        None, max_length=MAX_MESSAGES, description="None: the model is loaded, and nothing is generated."
    )
    tools: list[Any] | None = Field(None, max_length=MAX_TOOLS, description="As for chat completions.")

    REFUSED: ClassVar[Mapping[str, Harmless]] = {"template": ("",), "tool_choice": ("auto",)}
    REMEDIES: ClassVar[Mapping[str, str]] = {
        "template": "The model's own chat template is used.",
        "tool_choice": "Use /v1/chat/completions.",
    }

    @classmethod
    def ignored_in(cls, body: Mapping[str, Any]) -> list[str]:
        found = {name for message in body.get("messages") or () for name, value in message.items() if value}
        return [
            *super().ignored_in(body),
            *(f"messages[].{name}" for name in sorted(found - OllamaMessage.model_fields.keys())),
        ]


class OllamaGenerateRequest(SteeredRequest):
    prompt: str | None = Field(None, description="None: the model is loaded, and nothing is generated.")
    system: str | None = None
    context: list[int] | None = Field(None, description="Of an earlier answer, whose conversation is continued.")
    raw: bool | None = Field(None, description="Continue the prompt as it is, without the chat template.")

    TEXTS: ClassVar[tuple[str, ...]] = ("system", "prompt")
    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        "height": (),
        "images": ([],),
        "steps": (),
        "suffix": ("",),
        "template": ("",),
        "width": (),
    }
    REMEDIES: ClassVar[Mapping[str, str]] = {
        "height": "Use /v1/images/generations.",
        "images": NO_IMAGES,
        "steps": "Use /v1/images/generations.",
        "suffix": "Filling in the middle is not available.",
        "template": "The model's own chat template is used; with `raw`, `prompt` is the whole prompt.",
        "width": "Use /v1/images/generations.",
    }

    def check_together(self) -> None:
        super().check_together()
        for name in ("system", "context", "think") if self.raw else ():
            if getattr(self, name):
                raise invalid(f"`raw` cannot be combined with `{name}`.", param=name)

    def parameters(self) -> dict[str, Any]:
        return {name: value for name, value in super().parameters().items() if name != "context"}


class UnsteeredRequest(OllamaRequest):
    """The fields of requests for embeddings, on which options have no effect."""

    options: Annotated[OllamaOptions | None, IGNORED] = None

    REFUSED: ClassVar[Mapping[str, Harmless]] = dict.fromkeys(STEERED, ())
    REMEDIES: ClassVar[Mapping[str, str]] = {"profile": "This endpoint does not support steering."}

    def check_together(self) -> None:
        super().check_together()
        for name in STEERED if self.options is not None else ():
            if getattr(self.options, name) is not None:
                raise unsupported_parameter(f"options.{name}", "This endpoint does not support steering.")


def _read_input(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return [value] if value else []
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise PydanticCustomError("invalid_prompt", "must be a string or a list of strings")


class OllamaEmbedRequest(UnsteeredRequest):
    input: Annotated[
        list[str],
        Field(max_length=MAX_PROMPTS),
        BeforeValidator(_read_input),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
    ] = []
    truncate: bool | None = Field(None, description="false: refuse texts that are too long, in place of cutting them.")
    dimensions: int | None = Field(None, ge=0, description="Truncate the vectors to this length. 0: do not.")


class OllamaEmbeddingsRequest(UnsteeredRequest):
    prompt: str | None = None


class OllamaShowRequest(RequestSchema):
    model: str | None = None
    name: str | None = Field(None, description="Old name of `model`.")
    verbose: Annotated[bool | None, IGNORED] = None

    REFUSED: ClassVar[Mapping[str, Harmless]] = {"system": ("",), "template": ("",), "options": ({},)}

    def check_together(self) -> None:
        super().check_together()
        if not (self.model or self.name):
            raise invalid("`model` is required.", param="model", code="missing_required_parameter")


class OllamaErrorBody(TypedDict):
    """``param`` and ``code`` are extensions."""

    error: str
    param: str | None
    code: str | None


class OllamaLogprobBody(TypedDict):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: NotRequired[list[OllamaLogprobBody]]


class OllamaFunctionBody(TypedDict):
    """``arguments`` is {"raw": text} if the model did not write a JSON object."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaToolCallBody(TypedDict):
    id: str
    function: OllamaFunctionBody


class OllamaMessageBody(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaToolCallBody]]


class AnswerBody(TypedDict):
    """What lines of both kinds have. Durations are in nanoseconds; the last line has them."""

    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[Literal["stop", "length", "load", "unload"]]
    logprobs: NotRequired[list[OllamaLogprobBody]]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]
    millm: NotRequired[MillmBody]


class OllamaChatBody(AnswerBody):
    """A line of a stream, or the whole answer."""

    message: OllamaMessageBody


class OllamaGenerateBody(AnswerBody):
    """A line of a stream, or the whole answer."""

    response: str
    thinking: NotRequired[str]
    context: NotRequired[list[int]]


class OllamaEmbedBody(TypedDict):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsBody(TypedDict):
    embedding: list[float]


class OllamaDetailsBody(TypedDict):
    """Empty texts: this server's registry does not have these facts."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModelBody(TypedDict):
    """``digest`` identifies the entry, not the weights. ``size`` is 0: not known."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetailsBody


class OllamaTagsBody(TypedDict):
    models: list[OllamaModelBody]


class OllamaRunningModelBody(TypedDict):
    """``expires_at``: when the model is unloaded if no request uses it from now on."""

    name: str
    model: str
    size: int
    size_vram: int
    digest: str
    details: OllamaDetailsBody
    expires_at: str
    context_length: int


class OllamaPsBody(TypedDict):
    models: list[OllamaRunningModelBody]


class OllamaShownBody(TypedDict):
    """The profile is that of the name, or the model's default."""

    profile: str | None
    state: str


class OllamaShowBody(TypedDict):
    """``capabilities`` include tools and thinking only of a loaded model."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetailsBody
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    millm: OllamaShownBody


class OllamaVersionBody(TypedDict):
    """The version of Ollama whose API this is."""

    version: str
