"""/v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from tests.openai_api.conftest import Api

URL = "/v1/audio/transcriptions"
pytestmark = pytest.mark.xdist_group("media")


@pytest.fixture
def whisper(with_models: Callable[..., Api], whisper_path: Path) -> Api:
    return with_models(("whisper", "transcription", whisper_path))


async def send(api: Api, file: Path, *, url: str = URL, headers: Any = None, **fields: Any) -> Any:
    with file.open("rb") as stream:
        form = {"file": SimpleUploadedFile(file.name, stream.read()), "model": "whisper", **fields}
    return await api.client.post(url, form, headers=headers)


async def test_text_and_duration(whisper: Api, sound: Callable[[float], Path]) -> None:
    response = await send(whisper, sound(3.0), prompt="A secret.")
    assert response.status_code == 200
    body = response.json()
    assert body["usage"] == {"type": "duration", "seconds": 3.0}
    row = whisper.log.only
    assert row.completion == body["text"]
    assert (row.prompt, row.model, row.media) == ("A secret.", "whisper", {"audio_seconds": 3.0})


async def test_formats(whisper: Api, sound: Callable[[float], Path]) -> None:
    file = sound(31.0)
    verbose = (await send(whisper, file, response_format="verbose_json")).json()
    segments = verbose["segments"]
    assert verbose["task"] == "transcribe"
    assert verbose["duration"] == 31.0
    assert verbose["language"] in {"english", "german", "french"}
    assert segments
    assert all(0 <= segment["start"] <= segment["end"] <= 60 for segment in segments)
    assert set(segments[0]) == {
        *("id", "seek", "start", "end", "text", "tokens", "temperature", "avg_logprob", "compression_ratio"),
        "no_speech_prob",
    }
    assert verbose["text"] == "".join(segment["text"] for segment in segments).strip()
    file = sound(1.0)
    text = await send(whisper, file, response_format="text")
    assert text["Content-Type"] == "text/plain; charset=utf-8"
    assert text.content.decode().endswith("\n")
    srt = (await send(whisper, file, response_format="srt")).content.decode()
    assert srt.startswith("1\n00:00:")
    vtt = await send(whisper, file, response_format="vtt")
    assert vtt.content.decode().startswith("WEBVTT\n\n00:00:")


async def test_stream(whisper: Api, sound: Callable[[float], Path]) -> None:
    file = sound(31.0)
    response = await send(whisper, file, stream="true", **{"include[]": "logprobs"})
    assert response["Content-Type"] == "text/event-stream"
    lines = [block.decode() async for block in response.streaming_content]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert lines[-1] == "data: [DONE]\n\n"
    assert {event["type"] for event in events[:-1]} == {"transcript.text.delta"}
    assert events[-1]["type"] == "transcript.text.done"
    assert events[-1]["text"] == "".join(event["delta"] for event in events[:-1]).strip()
    assert events[-1]["usage"] == {"type": "duration", "seconds": 31.0}
    assert sum(len(event["logprobs"]) for event in events[:-1]) == len(events[-1]["logprobs"])


async def test_translation(whisper: Api, sound: Callable[[float], Path]) -> None:
    url = "/v1/audio/translations"
    body = (await send(whisper, sound(3.0), url=url, response_format="verbose_json")).json()
    assert (body["task"], body["language"]) == ("translate", "english")


async def test_an_empty_model_is_the_default(whisper: Api, sound: Callable[[float], Path]) -> None:
    response = await send(whisper, sound(1.0), model="")
    assert response.status_code == 200
    assert whisper.log.only.model == "whisper"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"response_format": "diarized_json"}, "response_format", "unsupported_response_format"),
        ({"response_format": "xml"}, "response_format", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"temperature": "nan"}, "temperature", "invalid_value"),
        ({"temperature": "2"}, "temperature", "invalid_value"),
        ({"language": "klingon"}, "language", "invalid_value"),
        ({"language": "ja"}, "language", "invalid_value"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities", "invalid_value"),
        ({"stream": "true", "response_format": "srt"}, "stream", "invalid_value"),
        ({"prompt": "x" * 20_001}, "prompt", "invalid_value"),
        ({"keywords": "x"}, "keywords", "unsupported_parameter"),
    ],
)
async def test_bad_fields(
    whisper: Api, sound: Callable[[float], Path], fields: dict[str, str], param: str, code: str
) -> None:
    response = await send(whisper, sound(0.1), **fields)
    assert response.status_code == 400, response.content
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == (param, code)
    assert whisper.log.only.error_code == code


async def test_order_of_checks(whisper: Api, sound: Callable[[float], Path]) -> None:
    response = await whisper.client.post(URL, {"model": "nobody", "temperature": "hot"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "file")
    response = await send(whisper, sound(0.1), model="nobody", temperature="hot")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    response = await send(whisper, sound(0.1), model="tiny", temperature="hot")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "wrong_model_kind")
    response = await whisper.post(URL, {"model": "whisper"})
    assert response.status_code == 415


@pytest.mark.parametrize("content", [b"", b"no audio", b"RIFF\x00\x00\x00\x00WAVE", b"\x89PNG\r\n\x1a\n" + b"\0" * 64])
async def test_bad_files(whisper: Api, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "lie.wav"
    file.write_bytes(content)
    response = await send(whisper, file)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_file"
    assert whisper.log.only.status == 400


async def test_quota_in_seconds(whisper: Api, sound: Callable[[float], Path]) -> None:
    headers = whisper.keys.add("key", media_per_day={"audio_seconds": 4})
    assert (await send(whisper, sound(3.0), headers=headers)).status_code == 200
    assert (await send(whisper, sound(3.0), headers=headers)).status_code == 200  # some was left when it began
    response = await send(whisper, sound(3.0), headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "insufficient_quota")
    assert "seconds" in response.json()["error"]["message"]
