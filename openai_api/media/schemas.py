"""Requests of /v1/audio. Forms carry numbers and booleans as text, and arrays as repeated fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from media.messages import AudioFormat
from openai_api.http.errors import invalid
from openai_api.media.forms import FormSchema
from openai_api.schemas.base import IGNORED, NO_NUL, Harmless, Part, RequestSchema
from openai_api.schemas.bodies import ModelBody

MAX_INPUT = 4_096  # characters of a speech request
MAX_VOICE = 100
DEFAULT_VOICE = "alloy"
MAX_PROMPT = 20_000  # characters; the model reads the last 224 tokens
User = Annotated[str | None, Field(max_length=512)]


def _none_if_empty(value: Any) -> Any:
    return None if value == "" else value


class ServerVad(Part):
    model_config = ConfigDict(strict=False, extra="ignore", frozen=True)

    type: Literal["server_vad"]
    prefix_padding_ms: Annotated[int | None, IGNORED] = None
    silence_duration_ms: Annotated[int | None, IGNORED] = None
    threshold: Annotated[float | None, IGNORED] = None


def _strategy(value: Any) -> Any:
    """Parse the strategy, which forms carry as JSON."""
    if not isinstance(value, str) or not value.startswith("{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


class AudioForm(FormSchema):
    """The fields of transcriptions and translations."""

    model: str = ""
    prompt: str | None = Field(None, max_length=MAX_PROMPT, pattern=NO_NUL, description="The last 224 tokens are used.")
    temperature: float | None = Field(None, ge=0, le=1)
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    user: User = None

    TEXTS: ClassVar[tuple[str, ...]] = ("prompt",)


class TranscriptionForm(AudioForm):
    language: Annotated[str | None, BeforeValidator(_none_if_empty)] = Field(
        None, pattern=r"^[a-z]{2,3}$", description="ISO 639-1 code. Default: detected."
    )
    timestamp_granularities: list[Literal["word", "segment"]] | None = Field(None, max_length=2)
    include: list[Literal["logprobs"]] | None = Field(None, max_length=1)
    chunking_strategy: Annotated[Literal["auto"] | ServerVad | None, BeforeValidator(_strategy)] = Field(
        None, description="Long audio is always processed in windows of 30 seconds."
    )
    stream: bool | None = None
    known_speaker_names: Annotated[list[str] | None, IGNORED] = None
    known_speaker_references: Annotated[list[str] | None, IGNORED] = None

    REFUSED: ClassVar[Mapping[str, Harmless]] = {"keywords": (), "keyword_boosts": ()}

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        if body.get("response_format") == "diarized_json":
            message = "`response_format` `diarized_json` is not supported: this server does not tell speakers apart."
            raise invalid(message, param="response_format", code="unsupported_response_format")
        return super().parse(body)

    def check_together(self) -> None:
        super().check_together()
        if self.timestamp_granularities and self.response_format != "verbose_json":
            message = "`timestamp_granularities` requires `response_format` to be `verbose_json`."
            raise invalid(message, param="timestamp_granularities")
        if self.stream and self.response_format not in {"json", "text", "verbose_json"}:
            message = "`stream` requires `response_format` to be `json`, `text` or `verbose_json`."
            raise invalid(message, param="stream")
        if self.include and self.response_format not in {"json", "verbose_json"}:
            raise invalid("`include` requires `response_format` to be `json`.", param="include")


def _voice_id(value: Any) -> Any:
    """Return the id of a voice that is given as an object."""
    return value.get("id") if isinstance(value, dict) else value


class SpeechRequest(RequestSchema):
    model: str = ""
    input: str = Field(min_length=1, description="At most 4096 characters, or what the model's parameters say.")
    voice: Annotated[str, BeforeValidator(_voice_id)] = Field(
        DEFAULT_VOICE,
        max_length=MAX_VOICE,
        pattern=NO_NUL,
        description="The name of a voice, or an object with its `id`.",
        json_schema_extra={"type": ["string", "object"]},
    )
    response_format: AudioFormat | None = None
    speed: float | None = Field(None, ge=0.25, le=4.0)
    instructions: str | None = Field(None, max_length=MAX_INPUT)
    stream_format: Literal["audio", "sse"] | None = None
    seed: int | None = Field(None, ge=0, lt=2**63)
    user: User = None

    TEXTS: ClassVar[tuple[str, ...]] = ("input", "instructions")


class DurationUsageBody(TypedDict):
    type: Literal["duration"]
    seconds: float


class TranscriptionBody(TypedDict):
    text: str
    usage: DurationUsageBody


class SpeechModelListBody(TypedDict):
    """OpenAI's list, and ``models``, which Open WebUI reads."""

    object: Literal["list"]
    data: list[ModelBody]
    models: list[ModelBody]


class VoiceBody(TypedDict):
    id: str
    name: str
    object: Literal["audio.voice"]
    model: str


class VoiceListBody(TypedDict):
    """Both shapes that clients read: the list of OpenAI's kind, and ``voices``."""

    object: Literal["list"]
    data: list[VoiceBody]
    voices: list[VoiceBody]
    has_more: bool
