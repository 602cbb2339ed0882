"""Requests and answers of /v1/images. Forms carry numbers and booleans as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NotRequired, Self

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from core.errors import MillmError, quote
from media.messages import ImageFormat
from openai_api.http.errors import invalid
from openai_api.media.forms import FormSchema
from openai_api.media.schemas import User
from openai_api.schemas.base import IGNORED, NO_NUL, Harmless, RequestSchema

MAX_PROMPT = 32_000  # characters
MAX_IMAGES, MAX_STEPS = 10, 1_000
MIN_SIDE, MAX_SIDE, MAX_PIXELS = 64, 4_096, 2**23  # of an image that is made
MULTIPLE = 8
MAX_SEED = 2**63
_SIZE = re.compile(r"([0-9]{1,5})x([0-9]{1,5})")
# The codes that clients of image servers know, for fields with a value that is not accepted.
_CODES = {
    "n": "invalid_n",
    "size": "invalid_size",
    "strength": "invalid_strength",
    "response_format": "invalid_response_format",
    "output_format": "unsupported_output_format",
}

Advisory = Annotated[str | None, IGNORED, Field(max_length=100)]
Prompt = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT, pattern=NO_NUL)]


def parsed_size(text: str) -> tuple[int, int] | None:
    """Return the width and height of WIDTHxHEIGHT; None for anything else."""
    found = _SIZE.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


class ImageOptions(RequestSchema):
    """The fields that all three endpoints share."""

    model: str | None = Field(None, description="Default: the default image model.")
    n: int | None = Field(None, ge=1, le=MAX_IMAGES, description="Number of images. Default: 1.")
    size: str | None = Field(
        None,
        max_length=20,
        description=f"WIDTHxHEIGHT, multiples of {MULTIPLE} from {MIN_SIDE} to {MAX_SIDE}, at most {MAX_PIXELS} "
        "pixels; or `auto`: the model's own size.",
    )
    response_format: Literal["b64_json", "url"] | None = Field(
        None, description="`url` needs MILLM_PUBLIC_URL. Streams always contain `b64_json`."
    )
    output_format: ImageFormat | None = Field(None, description="Default: `png`.")
    output_compression: int | None = Field(None, ge=0, le=100, description="Quality of `jpeg` and `webp`.")
    background: Literal["auto", "opaque", "transparent"] | None = Field(
        None, description="`transparent` is not supported."
    )
    seed: int | None = Field(
        None,
        ge=-MAX_SEED,
        lt=MAX_SEED,
        description="Of the first image; the next images have the next seeds. Negative or missing: random.",
    )
    steps: int | None = Field(None, ge=1, le=MAX_STEPS, description="Denoising steps. Default: the model's.")
    guidance: float | None = Field(None, ge=0, le=100, description="Guidance scale. Default: the model's.")
    negative_prompt: str | None = Field(None, max_length=MAX_PROMPT, pattern=NO_NUL)
    user: User = None
    quality: Advisory = None
    style: Advisory = None
    moderation: Advisory = None
    input_fidelity: Advisory = None

    TEXTS: ClassVar[tuple[str, ...]] = ("prompt", "negative_prompt")
    REFUSED: ClassVar[Mapping[str, Harmless]] = {"frame_count": (1, "1"), "svg": ()}

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        try:
            return super().parse(body)
        except MillmError as error:
            code = _CODES.get(error.param or "")
            if code is None or error.code not in {"invalid_value", "invalid_type"}:
                raise
            raise invalid(error.message, param=error.param, code=code) from None

    def check_together(self) -> None:
        super().check_together()
        if self.size not in {None, "auto"}:
            self._check_size()
        if self.background == "transparent":
            message = "`background` `transparent` is not supported: the models make opaque images."
            raise invalid(message, param="background", code="unsupported_background")
        if self.output_compression is not None and self.image_format == "png":
            message = "`output_compression` requires `output_format` to be `jpeg` or `webp`: PNG is lossless."
            raise invalid(message, param="output_compression", code="unsupported_output_compression")

    @property
    def image_format(self) -> ImageFormat:
        return self.output_format or "png"

    @property
    def dimensions(self) -> tuple[int, int] | None:
        """Return the width and height, None for the model's own size."""
        return parsed_size(self.size or "")

    def _check_size(self) -> None:
        sides = self.dimensions
        if (
            sides is None
            or any(side % MULTIPLE or not MIN_SIDE <= side <= MAX_SIDE for side in sides)
            or sides[0] * sides[1] > MAX_PIXELS
        ):
            message = (
                f"`size` must be `auto` or WIDTHxHEIGHT in multiples of {MULTIPLE} from {MIN_SIDE} to {MAX_SIDE}, at "
                f"most {MAX_PIXELS} pixels, got `{quote(self.size)}`."
            )
            raise invalid(message, param="size")


class StreamedImageOptions(ImageOptions):
    """The fields of endpoints that can stream."""

    stream: bool | None = None
    partial_images: int | None = Field(None, ge=0, le=3, description="Previews of each image. Requires `stream`.")


class ImageRequest(StreamedImageOptions):
    prompt: Prompt


class ChangedImageOptions(ImageOptions):
    """The fields of endpoints that start from an image."""

    strength: float | None = Field(
        None, ge=0, le=1, description="How far the result may differ from the image, from 0 to 1."
    )


class ImageEditForm(StreamedImageOptions, ChangedImageOptions, FormSchema):
    prompt: Prompt


class ImageVariationForm(ChangedImageOptions, FormSchema):
    REFUSED: ClassVar[Mapping[str, Harmless]] = {**ImageOptions.REFUSED, "stream": ("false", "0"), "prompt": ("",)}


class ImageInputDetails(TypedDict):
    image_tokens: int
    text_tokens: int


class ImageUsageBody(TypedDict):
    input_tokens: int
    input_tokens_details: ImageInputDetails
    output_tokens: int
    total_tokens: int


class ImageBody(TypedDict):
    """An image. ``seed`` makes it again."""

    b64_json: NotRequired[str]
    url: NotRequired[str]
    expires_at: NotRequired[int]
    seed: int


class ImagesBody(TypedDict):
    created: int
    background: Literal["opaque"]
    output_format: ImageFormat
    size: str
    data: list[ImageBody]
    usage: ImageUsageBody


class ImageEventBody(TypedDict):
    """An event of a stream. ``partial_image_index`` is that of a preview; completed images have ``usage``."""

    type: Literal[
        "image_generation.partial_image",
        "image_generation.completed",
        "image_edit.partial_image",
        "image_edit.completed",
    ]
    b64_json: str
    background: Literal["opaque"]
    created_at: int
    output_format: ImageFormat
    quality: Literal["auto"]
    size: str
    image_index: int
    seed: int
    partial_image_index: NotRequired[int]
    usage: NotRequired[ImageUsageBody]
