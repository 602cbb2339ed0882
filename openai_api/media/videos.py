"""/v1/videos: create, list, retrieve, download, delete and remix videos. The queue runs them; see media/queue.py."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from django.conf import settings
from django.http.response import HttpResponseBase

from core.database import in_database, in_thread
from core.errors import MillmError, quote
from core.runtime import runtime
from inference.registry.model_card import MediaCard
from media.models import Video
from media.queue import VIDEO_QUEUE
from media.videos import (
    VideoOrder,
    create_video,
    delete_video,
    find_video,
    video_store,
)
from openai_api.endpoints.pagination import page_of
from openai_api.generation.target import find_media_model, loaded_media
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid, without_paths
from openai_api.http.file_response import Content, send_content
from openai_api.http.file_uploads import SentFile, body_limit
from openai_api.http.json_body import read_json_object
from openai_api.media.forms import in_media_thread, read_media_form
from openai_api.media.references import write_image
from openai_api.media.video_schemas import (
    ImageReference,
    RemixRequest,
    VideoBody,
    VideoDeletedBody,
    VideoForm,
    VideoRequest,
    is_size,
)
from openai_api.schemas.base import ListQuery
from storage.blobs import BlobWriter

CONTENT_TYPES = {"mp4": "video/mp4", "avi": "video/x-msvideo"}
REFERENCE = "input_reference"
DEFAULT_SECONDS, DEFAULT_FPS, DEFAULT_SIZE = 4, 16.0, (832, 480)
MAX_RANDOM_SEED = 2**32  # JavaScript holds such numbers exactly
RETRY_S = 5.0  # between two looks at a video that is not ready


async def create(call: Call) -> HttpResponseBase:
    """Queue a video. The model is checked before the other fields."""
    with ExitStack() as files:
        schema, body, file = await _read(call, files)
        name = body.get("model")
        record = find_media_model(call, name if isinstance(name, str) else "", "video")
        request = call.read_body(body, schema)
        source = _source(request, file)
        if file is not None:
            call.parameters[REFERENCE] = "file"
        card = await loaded_media(record)
        order = _order(call, request, card, has_image=source is not None)
        await call.reserve_media("video_seconds", order.seconds)
        reference = None
        if source is not None:
            reference = await in_thread(files.enter_context, video_store().writing())
            await write_image(call, source, reference, param=REFERENCE)
        return await _created(call, order, reference)


async def remix(call: Call, video_id: str) -> HttpResponseBase:
    """Queue a video like another one, the seed and the image included, with another prompt."""
    body = read_json_object(call.request)
    row = await in_database(find_video, video_id, owner_id=call.owner_id)
    request = call.read_body(body, RemixRequest)
    call.parameters["remixed_from"] = row.public_id
    find_media_model(call, row.model, "video")
    _check_ready(row)
    order = VideoOrder(
        model=row.model,
        prompt=request.prompt,
        width=row.width,
        height=row.height,
        seconds=row.seconds,
        fps=row.fps,
        num_frames=row.num_frames,
        seed=row.seed,
        options=row.options,
    )
    await call.reserve_media("video_seconds", order.seconds)
    with ExitStack() as files:
        reference = None
        if row.reference:
            reference = await in_thread(files.enter_context, video_store().writing())
            try:
                await in_thread(video_store().copy, [row.reference], reference)
            except FileNotFoundError:
                raise _expired(row) from None
        return await _created(call, order, reference, remixed_from=row.public_id)


async def list_videos(call: Call) -> HttpResponseBase:
    query = ListQuery.parse(call.request.GET)

    def read() -> dict[str, Any]:
        return page_of(Video.objects.of(call.owner_id), query).body(video_body)

    return json_response(await in_database(read))


async def retrieve(call: Call, video_id: str) -> HttpResponseBase:
    return json_response(video_body(await in_database(find_video, video_id, owner_id=call.owner_id)))


async def delete(call: Call, video_id: str) -> HttpResponseBase:
    """Delete a video, and stop it if it runs."""
    await in_database(lambda: delete_video(public_id=video_id, owner_id=call.owner_id))
    _wake_queue()
    body: VideoDeletedBody = {"id": video_id, "object": "video.deleted", "deleted": True}
    return json_response(body)


async def get_content(call: Call, video_id: str) -> HttpResponseBase:
    row = await in_database(find_video, video_id, owner_id=call.owner_id)
    name = call.request.GET.get("format") or "mp4"
    if call.request.GET.get("variant", "video") not in {"", "video"}:
        message = "`variant` must be `video`: this server renders no thumbnails and sprite sheets."
        raise MillmError(message, status=501, code="unsupported_variant", param="variant")
    if name not in CONTENT_TYPES:
        raise invalid(f"`format` must be `mp4` or `avi`, got `{quote(name)}`.", param="format")
    return await send_video(call, row, name)


async def send_video(call: Call, row: Video, name: str = "mp4") -> HttpResponseBase:
    """Return the file of a video in a format, or the requested range. Raises MillmError 409, 410 and 416."""
    _check_ready(row)
    output = row.outputs[name]
    content = Content(
        partial(video_store().open, output["name"]),
        f"{row.public_id}.{name}",
        output["size"],
        output["sha256"],
        content_type=CONTENT_TYPES[name],
    )
    return await send_content(call, content, _expired(row))


async def _read(call: Call, files: ExitStack) -> tuple[type[VideoForm], dict[str, Any], SentFile | None]:
    """Return the schema, the body and the file of a request, which is JSON or a form."""
    if (call.request.content_type or "").lower() != "multipart/form-data":
        limit = body_limit(call.request.path)  # of a data URI
        return VideoRequest, await in_media_thread(read_json_object, call.request, limit=limit), None
    form = await read_media_form(call, files, {REFERENCE: 1})
    body = VideoForm.body_of(form)
    parts = {name: body.pop(key) for name in ("image_url", "file_id") if (key := f"{REFERENCE}[{name}]") in body}
    found = form.files.get(REFERENCE, ())
    if parts:
        body[REFERENCE] = parts
    return VideoForm, body, found[0] if found else None


def _source(request: VideoForm, file: SentFile | None) -> SentFile | ImageReference | None:
    """Return the image as the request sends it, None without one."""
    if file is not None and request.input_reference is not None:
        message = f"`{REFERENCE}` must be a file or an object, got both."
        raise invalid(message, param=REFERENCE, code=f"invalid_{REFERENCE}")
    return file or request.input_reference


def _order(call: Call, request: VideoForm, card: MediaCard, *, has_image: bool) -> VideoOrder:
    """Return what the request orders, with the model's and the server's defaults. Raises MillmError 400."""
    abilities, defaults = card.facts.abilities, card.record.default_sampling
    if has_image and "image" not in abilities:
        message = f"The model `{card.record.name}` makes videos from text only. Remove `{REFERENCE}`."
        raise invalid(message, param=REFERENCE, code="unsupported_parameter")
    if not has_image and "text" not in abilities:
        message = f"The model `{card.record.name}` makes videos from images only. Send `{REFERENCE}`."
        raise invalid(message, param=REFERENCE, code="missing_required_parameter")
    strength, flow_shift = request.strength, request.flow_shift
    if strength is not None and not (has_image and "strength" in abilities):
        call.note_ignored("strength")
        strength = None
    if flow_shift is not None and "flow_shift" not in abilities:
        call.note_ignored("flow_shift")
        flow_shift = None
    options = {
        "steps": _first(request.steps, defaults.get("steps")),
        "guidance": _first(request.cfg_scale, defaults.get("guidance")),
        "negative_prompt": _first(request.negative_prompt, defaults.get("negative_prompt")),
        "flow_shift": flow_shift,
        "strength": strength,
    }
    seconds = int(request.seconds or defaults.get("seconds", DEFAULT_SECONDS))
    fps = float(_first(request.fps, defaults.get("fps", DEFAULT_FPS)))
    width, height = _size(request, card, defaults)
    num_frames = frames_of(seconds, fps)
    if width * height * num_frames > settings.MILLM_MAX_VIDEO_PIXELS:
        message = (
            f"The video would have {num_frames} frames of {width}x{height} pixels; the limit for all frames together "
            f"is {settings.MILLM_MAX_VIDEO_PIXELS} pixels (MILLM_MAX_VIDEO_PIXELS). Lower `size`, `seconds` or `fps`."
        )
        raise invalid(message, param="size", code="video_too_large")
    return VideoOrder(
        model=card.record.name,
        prompt=request.prompt,
        width=width,
        height=height,
        seconds=seconds,
        fps=fps,
        num_frames=num_frames,
        seed=secrets.randbelow(MAX_RANDOM_SEED) if request.seed is None or request.seed < 0 else request.seed,
        options={name: value for name, value in options.items() if value is not None},
    )


def frames_of(seconds: int, fps: float) -> int:
    """Return the number of frames: the nearest of the form 4k+1, as the models' autoencoders have them."""
    return 4 * max(0, math.floor((seconds * fps - 1) / 4 + 0.5)) + 1


def _size(request: VideoForm, card: MediaCard, defaults: Mapping[str, Any]) -> tuple[int, int]:
    given = request.size or defaults.get("size")
    if given is None or not is_size(given):
        width, height = card.facts.default_size or DEFAULT_SIZE
        return width, height
    width, height = map(int, given.split("x"))
    return width, height


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


async def _created(
    call: Call, order: VideoOrder, reference: BlobWriter | None, *, remixed_from: str = ""
) -> HttpResponseBase:
    key_id = call.key.pk if call.key is not None else None
    row = await in_thread(
        create_video,
        order=order,
        owner_id=call.owner_id,
        key_id=key_id,
        reference=reference,
        remixed_from=remixed_from,
    )
    _wake_queue()
    call.parameters["video"] = row.public_id
    call.outcome = replace(call.outcome, media={"video_seconds": order.seconds})
    return json_response(video_body(row))


def _check_ready(row: Video) -> None:
    """Raise MillmError 409 or 410 unless the video can be downloaded."""
    if row.status == Video.Status.FAILED:
        message = f"The video `{row.public_id}` failed: {without_paths(row.error_message)}"
        raise MillmError(message, status=409, code="video_failed", param="video_id")
    if row.status != Video.Status.COMPLETED:
        message = f"The video `{row.public_id}` is not ready ({row.status}, {row.progress} %). Try again later."
        raise MillmError(message, status=409, code="video_not_ready", param="video_id", retry_after_s=RETRY_S)
    if row.has_expired:
        raise _expired(row)


def _expired(row: Video) -> MillmError:
    message = f"The files of the video `{row.public_id}` have expired (MILLM_VIDEO_RETENTION_DAYS). Create it again."
    return MillmError(message, status=410, code="video_expired", param="video_id", can_retry=False)


def _wake_queue() -> None:
    queue = runtime.find(VIDEO_QUEUE)
    if queue is not None:
        queue.wake()


def video_body(row: Video) -> VideoBody:
    status: Any = row.status
    has_failed = status == Video.Status.FAILED
    return {
        "id": row.public_id,
        "object": "video",
        "model": row.model,
        "status": status,
        "progress": row.progress,
        "created_at": int(row.created_at.timestamp()),
        "completed_at": _timestamp(row.completed_at),
        "expires_at": _timestamp(row.expires_at),
        "prompt": row.prompt,
        "size": f"{row.width}x{row.height}",
        "seconds": str(row.seconds),
        "remixed_from_video_id": row.remixed_from or None,
        "error": {"code": row.error_code, "message": without_paths(row.error_message)} if has_failed else None,
        "seed": row.seed,
        "fps": int(row.fps) if row.fps.is_integer() else row.fps,
    }


def _timestamp(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())
