"""Run requests to media models from admin pages under the session, with the handlers that serve API clients."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from core.errors import MillmError
from openai_api.endpoints.try_model import PERMISSION, checked
from openai_api.http.call import Call
from openai_api.http.endpoint import Handler, respond_as
from openai_api.http.session_auth import (
    SessionUser,
    authenticate_session,
    form_request_for,
    refusal_response,
    request_for,
)
from openai_api.media.audio import CONTENT_TYPES, create_speech, create_transcription
from openai_api.media.image_schemas import MAX_PROMPT, MAX_SEED, MAX_STEPS
from openai_api.media.images import create_image
from openai_api.media.schemas import MAX_INPUT

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


async def _authenticated(request: HttpRequest) -> SessionUser:
    return await authenticate_session(request, PERMISSION, act="try models")


async def _respond(user: SessionUser, request: ASGIRequest, handler: Handler) -> HttpResponseBase:
    call = Call(request, request.path, source="console", session_user_id=user.pk)
    return await respond_as(call, None, handler)
