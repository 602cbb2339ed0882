"""Run requests to media models from admin pages under the session, with the handlers that serve API clients."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from functools import partial
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from core.database import in_database
from core.errors import MillmError
from media.models import Video
from media.videos import VideoNotFoundError, find_video
from openai_api.endpoints.try_model import PERMISSION, checked
from openai_api.http.call import Call
from openai_api.http.endpoint import Handler, json_response, respond_as
from openai_api.http.errors import forbidden
from openai_api.http.session_auth import (
    SessionUser,
    authenticate_session,
    download_request_for,
    form_request_for,
    refusal_response,
    request_for,
)
from openai_api.media.audio import CONTENT_TYPES, create_speech, create_transcription
from openai_api.media.image_schemas import MAX_PROMPT, MAX_SEED, MAX_STEPS
from openai_api.media.images import create_image
from openai_api.media.schemas import MAX_INPUT
from openai_api.media.videos import create, delete, send_video, video_body
from openai_api.models import LogAccess
from openai_api.request_log.access import HIDDEN, SEE_TEXT, record_access

VIEW_VIDEO = "media.view_video"
CONTENT_ENDPOINT = "/v1/videos/{id}/content"

NUM_PREVIEWS = 3  # as many as the API gives

SEGMENTS = "segments"
TRANSCRIPT_FORMATS = (
    (SEGMENTS, "Segments"),
    ("text", "Text"),
    ("srt", "SRT"),
    ("vtt", "WebVTT"),
    ("verbose_json", "JSON"),
)
AUDIO_FORMATS = tuple((name, name.upper() if name != "opus" else "Opus") for name in CONTENT_TYPES)


class TranscriptionForm(forms.Form):
    model = forms.CharField(max_length=200)
    file = forms.FileField(max_length=200, allow_empty_file=True)  # the handler says what is wrong with it
    language = forms.CharField(max_length=3, required=False)
    response_format = forms.ChoiceField(choices=TRANSCRIPT_FORMATS)


class SpeechForm(forms.Form):
    model = forms.CharField(max_length=200)
    input = forms.CharField(max_length=MAX_INPUT, strip=False)
    voice = forms.CharField(max_length=100, required=False)
    response_format = forms.ChoiceField(choices=AUDIO_FORMATS)
    speed = forms.FloatField(min_value=0.25, max_value=4)


class ImageForm(forms.Form):
    model = forms.CharField(max_length=200)
    prompt = forms.CharField(max_length=MAX_PROMPT, strip=False)
    size = forms.CharField(max_length=20, required=False)
    steps = forms.IntegerField(min_value=1, max_value=MAX_STEPS, required=False)
    seed = forms.IntegerField(min_value=0, max_value=MAX_SEED - 1, required=False)


class VideoForm(forms.Form):
    model = forms.CharField(max_length=200)
    prompt = forms.CharField(max_length=MAX_PROMPT, strip=False)
    size = forms.CharField(max_length=20, required=False)
    seconds = forms.CharField(max_length=3, required=False)
    steps = forms.IntegerField(min_value=1, max_value=MAX_STEPS, required=False)
    seed = forms.IntegerField(min_value=0, max_value=MAX_SEED - 1, required=False)


async def try_transcription(request: HttpRequest) -> HttpResponseBase:
    """Stream the segments of a transcription, or return it in another format."""
    try:
        user = await _authenticated(request)
        asked = checked(TranscriptionForm(request.POST, request.FILES))
    except MillmError as error:
        return refusal_response(error)
    fields = {"model": asked["model"], "user": user.get_username(), **_transcript_fields(asked)}
    with tempfile.TemporaryFile() as body:
        forwarded = await asyncio.to_thread(
            form_request_for, "/v1/audio/transcriptions", fields, {"file": asked["file"]}, body
        )
        return await _respond(user, forwarded, create_transcription)  # which reads the body before it answers


def _transcript_fields(asked: Mapping[str, Any]) -> dict[str, str]:
    language = {"language": asked["language"]} if asked["language"] else {}
    if asked["response_format"] != SEGMENTS:
        return {**language, "response_format": asked["response_format"]}
    return {**language, "response_format": "verbose_json", "stream": "true"}


async def try_speech(request: HttpRequest) -> HttpResponseBase:
    try:
        user = await _authenticated(request)
        asked = checked(SpeechForm(request.POST))
    except MillmError as error:
        return refusal_response(error)
    voice = {"voice": asked["voice"]} if asked["voice"] else {}
    fields = {name: asked[name] for name in ("model", "input", "response_format", "speed")}
    forwarded = request_for("/v1/audio/speech", {**fields, **voice, "user": user.get_username()})
    return await _respond(user, forwarded, create_speech)


async def try_image(request: HttpRequest) -> HttpResponseBase:
    """Stream previews of an image, and the image."""
    try:
        user = await _authenticated(request)
        asked = checked(ImageForm(request.POST))
    except MillmError as error:
        return refusal_response(error)
    given = {name: value for name, value in asked.items() if value not in ("", None)}
    fields = {**given, "stream": True, "partial_images": NUM_PREVIEWS, "user": user.get_username()}
    return await _respond(user, request_for("/v1/images/generations", fields), create_image)


async def try_video(request: HttpRequest) -> HttpResponseBase:
    """Queue a video, which belongs to the user."""
    try:
        user = await _authenticated(request)
        asked = checked(VideoForm(request.POST))
    except MillmError as error:
        return refusal_response(error)
    fields = {name: value for name, value in asked.items() if value not in ("", None)}
    return await _respond(user, request_for("/v1/videos", {**fields, "user": user.get_username()}), create)


async def try_video_state(request: HttpRequest, video_id: str) -> HttpResponseBase:
    """Return a video of the user. It is asked for every second, so it is no request of the log."""
    try:
        user = await _authenticated(request, method="GET")
        return json_response(video_body(await in_database(find_video, video_id, owner_id=user.pk)))
    except MillmError as error:
        return refusal_response(error)


async def try_video_cancel(request: HttpRequest, video_id: str) -> HttpResponseBase:
    """Delete a video of the user, which stops it."""
    try:
        user = await _authenticated(request)
    except MillmError as error:
        return refusal_response(error)
    call = Call(request_for(f"/v1/videos/{video_id}", {}), "/v1/videos/{id}", source="console", session_user_id=user.pk)
    call.user = user.get_username()
    return await respond_as(call, None, partial(delete, video_id=video_id))


async def try_video_content(request: HttpRequest, video_id: str) -> HttpResponseBase:
    """Send a video of the user."""
    try:
        user = await _authenticated(request, method="GET")
        row = await in_database(find_video, video_id, owner_id=user.pk)
    except MillmError as error:
        return refusal_response(error)
    return await _send(user, request, row)


async def preview_video(request: HttpRequest, video_id: str) -> HttpResponseBase:
    """Send the video of any user to one who may read the texts of requests. The access is recorded."""
    try:
        user = await authenticate_session(request, VIEW_VIDEO, act="see videos", method="GET")
        if not await user.ahas_perm(SEE_TEXT):
            raise forbidden(HIDDEN, code="permission_denied")
        row = await in_database(lambda: Video.objects.filter(public_id=video_id.replace("\0", "")).first())
        if row is None:
            raise VideoNotFoundError("The video does not exist.")
    except MillmError as error:
        return refusal_response(error)
    assert isinstance(user, User)
    if request.headers.get("Range", "bytes=0-").startswith("bytes=0-"):  # players ask for several parts
        await in_database(lambda: record_access(act=LogAccess.Act.PLAY, user=user, detail={"video": row.public_id}))
    return await _send(user, request, row)


async def _send(user: SessionUser, request: HttpRequest, row: Video) -> HttpResponseBase:
    forwarded = download_request_for(f"/v1/videos/{row.public_id}/content", request)
    call = Call(forwarded, CONTENT_ENDPOINT, source="console", session_user_id=user.pk)
    call.user = user.get_username()
    return await respond_as(call, None, partial(send_video, row=row))


async def _authenticated(request: HttpRequest, *, method: str = "POST") -> SessionUser:
    return await authenticate_session(request, PERMISSION, act="try models", method=method)


async def _respond(user: SessionUser, request: ASGIRequest, handler: Handler) -> HttpResponseBase:
    call = Call(request, request.path, source="console", session_user_id=user.pk)
    return await respond_as(call, None, handler)
