"""Requests to media models from admin pages: a session's form on the way of every client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import AsyncClient

from tests.openai_api.conftest import Api, chunks_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("media")]
TRANSCRIBE = "/admin/try-model/transcription"
PAINT = "/admin/try-model/image"
SPEAK = "/admin/try-model/speech"


@pytest.fixture
def surface(with_models: Callable[..., Api], whisper_path: Path, vits_path: Path) -> Api:
    return with_models(("whisper", "transcription", whisper_path), ("voice", "speech", vits_path))


async def signed_in(*codenames: str) -> AsyncClient:
    user = await User.objects.acreate_user("rita", is_staff=True)
    await user.user_permissions.aset([row async for row in Permission.objects.filter(codename__in=codenames)])
    client = AsyncClient()
    await client.aforce_login(user)
    return client


def form_of(file: Path, **fields: str) -> dict[str, Any]:
    return {
        "model": "whisper",
        "file": SimpleUploadedFile("sound", file.read_bytes()),
        "response_format": "segments",
        **fields,
    }


async def test_segments_come_as_a_stream(surface: Api, sound: Callable[[float], Path]) -> None:
    client = await signed_in("use_playground")
    response = await client.post(TRANSCRIBE, form_of(sound(3.0), language="en"))
    assert response.status_code == 200, response.content
    *events, end = await chunks_of(response)
    assert end == "[DONE]"
    assert {event["type"] for event in events} == {
        "transcript.text.delta",
        "transcript.text.segment",
        "transcript.text.done",
    }
    (first, *_) = [event for event in events if event["type"] == "transcript.text.segment"]
    assert 0 <= first["start"] <= first["end"]
    entry = surface.log.only
    assert (entry.user, entry.source, entry.model, entry.status) == ("rita", "console", "whisper", 200)
    assert entry.parameters["language"] == "en"
    assert response["x-request-id"] == entry.id


async def test_other_formats(surface: Api, sound: Callable[[float], Path]) -> None:
    client = await signed_in("use_playground")
    response = await client.post(TRANSCRIBE, form_of(sound(3.0), response_format="vtt"))
    assert response.content.startswith(b"WEBVTT")


async def test_speech(surface: Api) -> None:
    client = await signed_in("use_playground")
    fields = {"model": "voice", "input": "one two", "response_format": "wav", "speed": "1.5"}
    response = await client.post(SPEAK, fields)
    assert response.status_code == 200, response.content
    assert response["Content-Type"] == "audio/wav"
    assert response.content.startswith(b"RIFF")
    entry = surface.log.only
    assert (entry.user, entry.endpoint, entry.source) == ("rita", "/v1/audio/speech", "console")


async def test_an_image_with_previews(with_models: Callable[..., Api], diffusion_path: Path) -> None:
    surface = with_models(("painter", "image", diffusion_path))
    client = await signed_in("use_playground")
    fields = {"model": "painter", "prompt": "a <cat>", "size": "64x64", "steps": "4", "seed": "7"}
    *events, end = await chunks_of(await client.post(PAINT, fields))
    assert end == "[DONE]"
    assert [event["type"] for event in events][-2:] == ["image_generation.partial_image", "image_generation.completed"]
    assert events[-1]["seed"] == 7
    entry = surface.log.only
    assert (entry.user, entry.source, entry.prompt) == ("rita", "console", "a <cat>")


async def test_permission(surface: Api, sound: Callable[[float], Path]) -> None:
    client = await signed_in("view_languagemodel")
    for url, fields in ((TRANSCRIBE, form_of(sound(0.1))), (SPEAK, {"model": "voice", "input": "x"})):
        response = await client.post(url, fields)
        assert (response.status_code, response.json()["error"]["code"]) == (403, "permission_denied")
    assert surface.log.entries == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"speed": "9"}, "speed"),
        ({"input": ""}, "input"),
        ({"response_format": "pcm"}, "response_format"),
        ({"voice": "\0"}, "voice"),
    ],
)
async def test_bad_fields(surface: Api, fields: dict[str, str], param: str) -> None:
    client = await signed_in("use_playground")
    good = {"model": "voice", "input": "one", "response_format": "wav", "speed": "1"}
    response = await client.post(SPEAK, {**good, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_bad_file(surface: Api, tmp_path: Path) -> None:
    file = tmp_path / "lie"
    file.write_bytes(b"no audio")
    client = await signed_in("use_playground")
    response = await client.post(TRANSCRIBE, form_of(file, response_format="text"))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_file")


async def test_forged_request(surface: Api, sound: Callable[[float], Path]) -> None:
    user = await User.objects.acreate_superuser("root")
    client = AsyncClient(enforce_csrf_checks=True)
    await client.aforce_login(user)
    assert (await client.post(TRANSCRIBE, form_of(sound(0.1)))).status_code == 403
