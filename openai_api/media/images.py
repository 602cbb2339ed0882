"""The endpoints of /v1/images: generations, edits and variations."""

from __future__ import annotations

import base64
import re
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from django.conf import settings
from django.http.response import HttpResponseBase

from core.database import in_database, in_thread
from core.errors import MillmError
from inference.registry.model_card import MediaCard
from inference.registry.records import ModelRecord
from media.decoder.process import image_size
from media.messages import MAX_IMAGE_PIXELS, Event, GenerateImages, ImageFormat, Picture, Progress
from openai_api.generation.target import find_media_model, loaded_media
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.http.file_uploads import FilesForm
from openai_api.http.json_body import read_json_object
from openai_api.http.signed_links import signed_link
from openai_api.media.forms import in_media_thread, last_value, read_media_form
from openai_api.media.image_schemas import (
    MAX_SEED,
    MAX_SIDE,
    ChangedImageOptions,
    ImageBody,
    ImageEditForm,
    ImageEventBody,
    ImageOptions,
    ImageRequest,
    ImagesBody,
    ImageUsageBody,
    ImageVariationForm,
    StreamedImageOptions,
    parsed_size,
)
from openai_api.media.run import MediaRun, stream_events
from storage.blobs import BlobStore
from storage.files import check_quota, delete_files, keep_file
from storage.models import StoredFile

MAX_SENT = 16  # images of a form
VARIATION_STRENGTH = 0.6
LINK_LIFETIME_S = 3_600
AUTO_MULTIPLE = 64  # of pixels: every pipeline accepts it
_SIGNATURE = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|RIFF....WEBP", re.DOTALL)
_SIGNATURE_BYTES = 12
# The tokens of prompts are counted in the worker's text encoders, which do not tell; images are not made of tokens.
USAGE: ImageUsageBody = {
    "input_tokens": 0,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
    "output_tokens": 0,
    "total_tokens": 0,
}
T = TypeVar("T")
EventName = Literal["image_generation", "image_edit"]


@dataclass(frozen=True, slots=True)
class Sources:
    """The image to start from, with its size in pixels, and the mask."""

    image: Path | None = None
    size: tuple[int, int] | None = None
    mask: Path | None = None
    files: ExitStack = field(default_factory=ExitStack)  # deletes them


async def create_image(call: Call) -> HttpResponseBase:
    body = read_json_object(call.request)
    name = body.get("model")
    record = find_media_model(call, name if isinstance(name, str) else "", "image")
    request = call.read_body(body, ImageRequest)
    return await _respond(call, record, request, Sources())


async def edit_image(call: Call) -> HttpResponseBase:
    return await _respond_to_form(call, ImageEditForm, {"image": MAX_SENT, "mask": 1})


async def vary_image(call: Call) -> HttpResponseBase:
    return await _respond_to_form(call, ImageVariationForm, {"image": 1})


async def _respond_to_form(
    call: Call, schema: type[ImageEditForm | ImageVariationForm], most: dict[str, int]
) -> HttpResponseBase:
    with ExitStack() as files:
        form = await read_media_form(call, files, most)
        await in_media_thread(_check_files, form)
        record = find_media_model(call, last_value(form, "model"), "image")
        request = call.read_body(schema.body_of(form), schema)
        sources = await in_media_thread(_sources, form, files)
        return await _respond(call, record, request, sources)


def _check_files(form: FilesForm) -> None:
    """Raise MillmError 400 for a form without images, or with a file that is no image."""
    if not form.files.get("image"):
        message = "`image` is required and must be a file with a name."
        raise invalid(message, param="image", code="missing_image")
    for name, files in form.files.items():
        for file in files:
            with file.path.open("rb") as opened:
                beginning = opened.read(_SIGNATURE_BYTES)
            if not _SIGNATURE.match(beginning):
                raise invalid(f"`{name}` must be a PNG, JPEG or WebP image.", param=name, code="invalid_file")


def _sources(form: FilesForm, files: ExitStack) -> Sources:
    """Return the files, once they are decoded. Raises MillmError 400."""
    images, masks = form.files["image"], form.files.get("mask", ())
    if len(images) > 1:
        message = f"The models of this server take one `image`, got {len(images)}."
        raise invalid(message, param="image", code="unsupported_parameter")
    size = _size_of(images[0].path, "image")
    for mask in masks:
        found = _size_of(mask.path, "mask")
        if found != size:
            message = f"`mask` must have the size of `image`, {_shown(size)}, got {_shown(found)}."
            raise invalid(message, param="mask")
    return Sources(images[0].path, size, masks[0].path if masks else None, files)


def _size_of(path: Path, name: str) -> tuple[int, int]:
    try:
        return image_size(path, max_pixels=MAX_IMAGE_PIXELS)
    except MillmError as error:
        raise error.with_param(name) from None


async def _respond(call: Call, record: ModelRecord, request: ImageOptions, sources: Sources) -> HttpResponseBase:
    is_link = await _check_link(call, request)
    await call.reserve_media("images", request.n or 1)
    card = await loaded_media(record)
    _check_abilities(card, sources)
    task = _task(call, request, card, sources)
    run = ImageRun(call, task, files=sources.files.pop_all())
    if isinstance(request, StreamedImageOptions) and request.stream:
        name: EventName = "image_generation" if sources.image is None else "image_edit"
        return await stream_events(run, _events(run, task, name))
    pictures = [event.data for event in await run.collect() if isinstance(event, Picture)]
    return json_response(await _body(call, task, pictures, is_link=is_link))


async def _check_link(call: Call, request: ImageOptions) -> bool:
    """Return whether the answer has links. Raises MillmError 400, and 413 when the owner's storage is full."""
    if request.response_format != "url":
        return False
    if not settings.MILLM_PUBLIC_URL:
        message = (
            "`response_format` `url` needs the address of this server. Use `b64_json`, or ask the operator to set "
            "MILLM_PUBLIC_URL."
        )
        raise invalid(message, param="response_format", code="unsupported_response_format")
    await in_database(check_quota, call.owner_id, 1, param="response_format")  # before anything is computed
    return True


def _check_abilities(card: MediaCard, sources: Sources) -> None:
    """Raise MillmError 400 where the model cannot start from an image, or has no masks."""
    if sources.image is not None and "image" not in card.facts.abilities:
        message = f"The model `{card.record.name}` can't edit images. Use /v1/images/generations."
        raise invalid(message, param="model", code="wrong_model_kind")
    if sources.mask is not None and "mask" not in card.facts.abilities:
        message = f"The model `{card.record.name}` does not support `mask`."
        raise invalid(message, param="mask", code="mask_not_supported")


def _task(call: Call, request: ImageOptions, card: MediaCard, sources: Sources) -> GenerateImages:
    partial_images = _partial_images(call, request)
    defaults = card.record.default_sampling
    own_size = parsed_size(defaults.get("size", "")) or card.facts.default_size
    width, height = request.dimensions or auto_size(own_size, sources.size)
    strength = request.strength if isinstance(request, ChangedImageOptions) else None
    if strength is None and isinstance(request, ImageVariationForm):
        strength = VARIATION_STRENGTH
    seed = request.seed if request.seed is not None and request.seed >= 0 else secrets.randbelow(2**32)
    return GenerateImages(
        task="",
        model=card.record.name,
        prompt=getattr(request, "prompt", ""),
        width=width,
        height=height,
        num_images=request.n or 1,
        seed=seed,
        image_format=request.image_format,
        compression=100 if request.output_compression is None else request.output_compression,
        steps=_or_default(request.steps, defaults.get("steps")),
        guidance=_or_default(request.guidance, defaults.get("guidance")),
        negative_prompt=_or_default(request.negative_prompt, defaults.get("negative_prompt")),
        strength=strength,
        image=sources.image,
        mask=sources.mask,
        partial_images=partial_images,
    )


def _or_default(given: T | None, default: T | None) -> T | None:
    """Return what the request says, else the model's default."""
    return default if given is None else given


def _partial_images(call: Call, request: ImageOptions) -> int:
    if not isinstance(request, StreamedImageOptions) or not request.partial_images:
        return 0
    if not request.stream:
        call.note_ignored("partial_images")
        return 0
    return request.partial_images


def auto_size(own: tuple[int, int], source: tuple[int, int] | None) -> tuple[int, int]:
    """Return the model's own size; to edit an image, a size of about as many pixels with the shape of the image."""
    if source is None:
        return own
    scale = (own[0] * own[1] / (source[0] * source[1])) ** 0.5
    width, height = (min(MAX_SIDE, max(1, round(side * scale / AUTO_MULTIPLE)) * AUTO_MULTIPLE) for side in source)
    return width, height


class ImageRun(MediaRun):
    """Counts images and steps as they come, also those of a request that ends early."""

    def __init__(self, call: Call, task: GenerateImages, *, files: ExitStack) -> None:
        self._made: dict[str, float] = {"images": 0, "steps": 0}
        super().__init__(call, task, files=files, units=lambda result: self._made)

    async def next_event(self, patience_s: float) -> Event | None:
        event = await super().next_event(patience_s)
        if isinstance(event, Progress):
            self._made["steps"] = int(event.done)
        elif isinstance(event, Picture) and event.partial is None:
            self._made["images"] = event.index + 1
        self.call.outcome = replace(self.call.outcome, media=dict(self._made))
        return event


async def _events(run: ImageRun, task: GenerateImages, name: EventName) -> AsyncGenerator[object, None]:
    """Yield OpenAI's events, and None where the connection needs a sign of life."""
    async for event in run.events():
        yield _event_body(event, task, name) if isinstance(event, Picture) else None


def _event_body(picture: Picture, task: GenerateImages, name: EventName) -> ImageEventBody:
    body: ImageEventBody = {
        "type": f"{name}.completed" if picture.partial is None else f"{name}.partial_image",  # type: ignore[typeddict-item]  # its names
        "b64_json": base64.b64encode(picture.data).decode(),
        "background": "opaque",
        "created_at": int(time.time()),
        "output_format": task.image_format,
        "quality": "auto",
        "size": _size_text(task),
        "image_index": picture.index,
        "seed": _seed_of(task, picture.index),
    }
    if picture.partial is None:
        body["usage"] = USAGE
    else:
        body["partial_image_index"] = picture.partial
    return body


async def _body(call: Call, task: GenerateImages, pictures: Sequence[bytes], *, is_link: bool) -> ImagesBody:
    data: list[ImageBody] = []
    if is_link:
        for file in await in_thread(_keep, call.owner_id, pictures, task.image_format):
            data.append({"url": signed_link(file), "expires_at": _expiry(file), "seed": _seed_of(task, len(data))})
    else:
        for picture in pictures:
            data.append({"b64_json": base64.b64encode(picture).decode(), "seed": _seed_of(task, len(data))})
    return {
        "created": int(time.time()),
        "background": "opaque",
        "output_format": task.image_format,
        "size": _size_text(task),
        "data": data,
        "usage": USAGE,
    }


def _keep(owner_id: int | None, pictures: Sequence[bytes], image_format: ImageFormat) -> list[StoredFile]:
    """Store images for the lifetime of their links: all, or none."""
    files: list[StoredFile] = []
    try:
        for index, picture in enumerate(pictures):
            with BlobStore.from_settings().writing() as writer:
                writer.write(picture)
                files.append(
                    keep_file(
                        writer=writer,
                        filename=f"image-{index}.{image_format}",
                        purpose=StoredFile.Purpose.ASSISTANTS_OUTPUT,
                        owner_id=owner_id,
                        expires_after_s=LINK_LIFETIME_S,
                    )
                )
    except MillmError:
        delete_files(files=StoredFile.objects.filter(pk__in=[file.pk for file in files]))
        raise
    return files


def _expiry(file: StoredFile) -> int:
    assert file.expires_at is not None
    return int(file.expires_at.timestamp())


def _seed_of(task: GenerateImages, index: int) -> int:
    return (task.seed + index) % MAX_SEED


def _size_text(task: GenerateImages) -> str:
    return f"{task.width}x{task.height}"


def _shown(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]} pixels"
