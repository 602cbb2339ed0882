"""Requests to the media worker and its events. Frozen data, pickled between the processes.

A request has the id of its task. Its events end with :class:`Done` or :class:`Failed`. Files are passed as paths below
the media folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

MediaKind = Literal["transcription", "speech", "image", "video"]
AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
ImageFormat = Literal["png", "jpeg", "webp"]
VideoFormat = Literal["mp4", "avi"]
MAX_IMAGE_PIXELS = 4_096 * 4_096  # of images that clients send


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to load. ``options``: values of the kind's option fields."""

    name: str
    kind: MediaKind
    path: Path
    dtype: str = "auto"
    device: str = "cpu"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """``task``: unique among the open tasks. ``model``: the name of a loaded model."""

    task: str
    model: str


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model. :class:`Done` has its :class:`ModelFacts`."""

    task: str
    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class Unload:
    task: str
    model: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a task. It ends with :class:`Failed` and the code ``cancelled``, unless it has ended already."""

    task: str


@dataclass(frozen=True, slots=True)
class Transcribe(Task):
    """``temperature`` None or 0: Whisper's fallback. ``language`` None: detected."""

    file: Path
    max_seconds: float
    language: str | None = None
    prompt: str = ""
    temperature: float | None = None
    translate: bool = False
    with_words: bool = False
    with_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Speak(Task):
    """``speaker``: an index, an embedding, or the name of a preset, by the model's class. ``speed``: 0.25 to 4.

    ``reference``: FLAC of a voice to imitate. ``streams``: send each sentence as it is spoken.
    """

    text: str
    audio_format: AudioFormat
    speed: float = 1.0
    speaker: int | str | tuple[float, ...] | None = None
    reference: bytes | None = None
    streams: bool = True
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class GenerateImages(Task):
    """``image``: to edit or vary. ``mask``: where to edit. None: the pipeline's default."""

    prompt: str
    width: int | None
    height: int | None
    num_images: int
    seed: int
    image_format: ImageFormat
    compression: int = 100
    steps: int | None = None
    guidance: float | None = None
    negative_prompt: str | None = None
    strength: float | None = None
    image: Path | None = None
    mask: Path | None = None
    partial_images: int = 0


@dataclass(frozen=True, slots=True)
class GenerateVideo(Task):
    """``outputs``: the files to write, by format. ``flow_shift``: of the scheduler. None: the pipeline's default."""

    prompt: str
    width: int
    height: int
    num_frames: int
    fps: float
    seed: int
    outputs: Mapping[VideoFormat, Path]
    steps: int | None = None
    guidance: float | None = None
    negative_prompt: str | None = None
    flow_shift: float | None = None
    strength: float | None = None
    image: Path | None = None


Request = Load | Unload | Cancel | Transcribe | Speak | GenerateImages | GenerateVideo


@dataclass(frozen=True, slots=True)
class Event:
    task: str


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """``done`` of ``total`` steps (images, videos) or seconds (transcriptions)."""

    done: float
    total: float


@dataclass(frozen=True, slots=True)
class Word:
    word: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: str
    logprob: float
    bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Segment(Event):
    """A transcribed segment. ``start``, ``end`` in seconds; ``seek`` in frames of 10 ms, as Whisper counts."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: tuple[Word, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk(Event):
    """Encoded audio, in order."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Picture(Event):
    """An encoded image. ``partial``: the index of a preview, None for the image itself."""

    index: int
    data: bytes
    partial: int | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the server needs to know of a loaded model.

    ``memory_bytes``: of the weights. ``sample_rate``: of speech, in Hz. ``languages``: codes that it accepts.
    ``speakers``: names of presets. ``abilities``: ``translate``, ``segments``, ``words``, ``recording``, ``text``,
    ``image``, ``mask``, ``strength``, ``flow_shift``. ``default_size``: width and height in pixels.
    """

    architecture: str
    device: str
    dtype: str
    memory_bytes: int
    num_parameters: int
    sample_rate: int = 0
    languages: tuple[str, ...] = ()
    speakers: tuple[str, ...] = ()
    abilities: frozenset[str] = frozenset()
    default_size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Done(Event):
    """The task's end. ``result``: :class:`ModelFacts`, or facts by name. ``busy_s``: the time that it computed."""

    result: Any = None
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """``param``: the field of the request that caused it. ``status``: of the HTTP response."""

    code: str
    message: str
    status: int = 500
    param: str | None = None
