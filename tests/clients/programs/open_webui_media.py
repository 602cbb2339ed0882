"""The requests of Open WebUI 0.12 for speech, transcriptions and images, with the library that it uses."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from cases import case, main

HEADERS = {"Authorization": "Bearer none"}
_sound: list[bytes] = []


async def _get(url: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        response.raise_for_status()
        return await response.json()


async def _post(url: str, **body: Any) -> Any:
    async with aiohttp.ClientSession() as session, session.post(url, headers=HEADERS, **body) as response:
        content = await response.read()
        assert response.status == 200, content
        return await response.json(content_type=None) if "json" in response.content_type else (response, content)


@case
async def voices(url: str) -> Any:
    return {voice["id"]: voice["name"] for voice in (await _get(f"{url}/v1/audio/voices")).get("voices", [])}


@case
async def models(url: str) -> Any:
    return [model["id"] for model in (await _get(f"{url}/v1/audio/models")).get("models", [])]


@case
async def speech(url: str) -> Any:
    """The form for speech sends an empty model until one is chosen."""
    payload = {"input": "hello you", "voice": "alloy", "model": ""}
    response, content = await _post(f"{url}/v1/audio/speech", json=payload)
    _sound.append(content)
    return {"type": response.headers["Content-Type"], "bytes": len(content)}


@case
async def transcription(url: str) -> Any:
    """The file is sent in chunks, without a length and as an octet stream."""

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(_sound[0]), 1_000):
            yield _sound[0][start : start + 1_000]

    form = aiohttp.FormData()
    form.add_field("model", "")
    form.add_field("file", chunks(), filename="recording.webm")
    return await _post(f"{url}/v1/audio/transcriptions", data=form)


@case
async def image(url: str) -> Any:
    payload = {"model": "", "prompt": "a cat", "n": 1, "size": "64x64", "response_format": "b64_json"}
    data = (await _post(f"{url}/v1/images/generations", json=payload))["data"]
    _images.append(base64.b64decode(data[0]["b64_json"]))
    return {"count": len(data), "start": list(_images[0][:4])}


_images: list[bytes] = []


@case
async def edit(url: str) -> Any:
    form = aiohttp.FormData()
    for name, value in {"model": "", "prompt": "a dog", "n": 1, "size": "64x64", "response_format": "b64_json"}.items():
        form.add_field(name, str(value))
    form.add_field("image[]", _images[0], filename="image.png", content_type="image/png")
    return len((await _post(f"{url}/v1/images/edits", data=form))["data"])


if __name__ == "__main__":
    main()
