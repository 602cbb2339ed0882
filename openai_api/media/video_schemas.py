"""Requests and answers of /v1/videos. The fields of a request are the same as JSON and as a form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from core.errors import MillmError
from openai_api.http.errors import invalid
from openai_api.media.forms import FormSchema
from openai_api.media.schemas import User
from openai_api.schemas.base import NO_NUL, Part, RequestSchema

MAX_PROMPT = 32_000  # characters
MIN_SIDE, MAX_SIDE, SIDE_STEP = 32, 4_096, 16  # pixels
MAX_SECONDS = 120
MIN_FPS, MAX_FPS = 0.1, 120.0
MAX_SEED = 2**63
CODES = {
    "size": "invalid_size",
    "seconds": "invalid_seconds",
    "strength": "invalid_strength",
    "input_reference": "invalid_input_reference",
}


class ImageReference(Part):
    """An image by address or as a stored file."""

    image_url: str | None = Field(None, description="A data URI with base64, or an http or https URL.")
    file_id: str | None = Field(None, max_length=64, pattern=NO_NUL, description="An uploaded file.")


class VideoForm(FormSchema):
    """The text fields of a form. ``input_reference`` is a file, or ``input_reference[image_url]`` or ``[file_id]``."""

    model: str | None = Field(None, description="Default: the default video model.")
    prompt: str = Field(min_length=1, max_length=MAX_PROMPT, pattern=NO_NUL)
    size: str | None = Field(
        None,
        pattern=r"^[1-9]\d{1,3}x[1-9]\d{1,3}$",
        description="WIDTHxHEIGHT in multiples of 16, such as 832x480. Default: the model's.",
    )
    seconds: str | None = Field(
        None, pattern=r"^[1-9]\d{0,2}$", description="A positive integer up to 120, as a text. Default: 4."
    )
    fps: float | None = Field(None, ge=MIN_FPS, le=MAX_FPS, description="Frames per second. Default: 16.")
    steps: int | None = Field(None, ge=1, le=1_000)
    seed: int | None = Field(
        None, ge=-MAX_SEED, lt=MAX_SEED, description="Negative or missing: chosen at random. The answer contains it."
    )
    negative_prompt: str | None = Field(None, max_length=MAX_PROMPT, pattern=NO_NUL)
    cfg_scale: float | None = Field(
        None, ge=0, le=100, description="Guidance: how closely the video follows the prompt."
    )
    flow_shift: float | None = Field(None, gt=0, le=100, description="Shift of the scheduler's steps.")
    strength: float | None = Field(
        None, ge=0, le=1, description="How much of the image is replaced. Requires `input_reference`."
    )
    input_reference: ImageReference | None = Field(None, description="The image that the video starts from.")
    user: User = None

    TEXTS: ClassVar[tuple[str, ...]] = ("prompt", "negative_prompt")

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """Like the base, with the codes that clients of other servers know."""
        try:
            return super().parse(body)
        except MillmError as error:
            param = (error.param or "").partition(".")[0]
            if param in CODES and error.code != "unsupported_parameter":
                raise invalid(error.message, param=param, code=CODES[param]) from None
            raise

    def check_together(self) -> None:
        super().check_together()
        if self.seconds is not None and int(self.seconds) > MAX_SECONDS:
            raise invalid(f"`seconds` must be at most {MAX_SECONDS}, got `{self.seconds}`.", param="seconds")
        if self.size is not None and not is_size(self.size):
            message = (
                f"`size` must be multiples of {SIDE_STEP} from {MIN_SIDE} to {MAX_SIDE} pixels, got `{self.size}`."
            )
            raise invalid(message, param="size")
        reference = self.input_reference
        if reference is not None and (reference.image_url is None) == (reference.file_id is None):
            message = "`input_reference` must be a file, or an object with either `image_url` or `file_id`."
            raise invalid(message, param="input_reference")

    def parameters(self) -> dict[str, Any]:
        """Return what the client set, but how the image was sent instead of the image."""
        found = self.model_copy(update={"input_reference": None}).model_dump(
            exclude={*self.TEXTS, "model", "user"}, exclude_unset=True, exclude_none=True
        )
        if self.input_reference is not None:
            found["input_reference"] = "image_url" if self.input_reference.image_url is not None else "file_id"
        return found


def video_form() -> Mapping[str, Any]:
    """Return the JSON schema of the form for the OpenAPI document."""
    fields = dict(VideoForm.model_json_schema()["properties"])
    text = {"type": "string"}
    parts = {f"input_reference[{name}]": text for name in ImageReference.model_fields}
    file = {**text, "format": "binary", "description": "The image that the video starts from."}
    return {"type": "object", "required": ["prompt"], "properties": {**fields, "input_reference": file, **parts}}


class VideoRequest(VideoForm):
    model_config = ConfigDict(strict=True)


class RemixRequest(RequestSchema):
    prompt: str = Field(min_length=1, max_length=MAX_PROMPT, pattern=NO_NUL)

    TEXTS: ClassVar[tuple[str, ...]] = ("prompt",)


def is_size(text: str) -> bool:
    return all(MIN_SIDE <= side <= MAX_SIDE and side % SIDE_STEP == 0 for side in map(int, text.split("x")))


class VideoErrorBody(TypedDict):
    code: str
    message: str


class VideoBody(TypedDict):
    id: str
    object: Literal["video"]
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int
    created_at: int
    completed_at: int | None
    expires_at: int | None
    prompt: str
    size: str
    seconds: str
    remixed_from_video_id: str | None
    error: VideoErrorBody | None
    seed: int
    fps: float


class VideoListBody(TypedDict):
    object: Literal["list"]
    data: list[VideoBody]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeletedBody(TypedDict):
    id: str
    object: Literal["video.deleted"]
    deleted: bool
