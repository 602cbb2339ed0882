"""/v1/audio/speech, /v1/audio/voices and /v1/audio/models."""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pytest

from inference.models import LanguageModel
from media.models import Voice
from tests.media.tiny import save_vits
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import record

URL = "/v1/audio/speech"
LONG = "Hello you. How are you today? I am well."
pytestmark = [pytest.mark.xdist_group("media"), pytest.mark.django_db(transaction=True)]


@pytest.fixture(scope="session")
def vits_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vits(tmp_path_factory.mktemp("vits"), num_speakers=3)


@pytest.fixture
def speech(with_models: Callable[..., Api], vits_path: Path) -> Api:
    return with_models(("tts", "speech", vits_path))


async def say(api: Api, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    return await api.post(URL, {"model": "tts", "input": "hello", "seed": 7, **fields}, **(headers or {}))


async def body_of(response: Any) -> bytes:
    if not response.streaming:
        return bytes(response.content)
    return b"".join([block async for block in response.streaming_content])


def decoded(data: bytes) -> tuple[str, int, float]:
    """Return the container, the rate and the seconds of a sound."""
    with av.open(io.BytesIO(data), "r") as container:
        frames = list(container.decode(audio=0))
        return (
            container.format.name,
            frames[0].sample_rate,
            sum(frame.samples for frame in frames) / frames[0].sample_rate,
        )


async def test_wav_has_its_length(speech: Api) -> None:
    response = await say(speech, response_format="wav", voice="2")
    assert response.status_code == 200
    assert response["Content-Type"] == "audio/wav"
    assert int(response["Content-Length"]) == len(response.content)
    assert (response["X-Audio-Sample-Rate"], response["X-Audio-Channels"]) == ("16000", "1")
    assert response["X-Audio-Bits-Per-Sample"] == "16"
    with wave.open(io.BytesIO(response.content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
        seconds = file.getnframes() / 16_000
    row = speech.log.only
    assert (row.prompt, row.model) == ("hello", "tts")
    assert row.media == {"characters": 5, "audio_seconds": round(seconds, 2)}
    assert "x-millm-ignored-fields" not in response


@pytest.mark.parametrize(
    ("name", "content_type", "container"),
    [
        ("mp3", "audio/mpeg", "mp3"),
        ("opus", "audio/ogg", "ogg"),
        ("aac", "audio/aac", "aac"),
        ("flac", "audio/flac", "flac"),
    ],
)
async def test_formats_are_what_they_say(speech: Api, name: str, content_type: str, container: str) -> None:
    wav = decoded((await say(speech, response_format="wav")).content)
    response = await say(speech, response_format=name)
    assert response["Content-Type"] == content_type
    assert "X-Audio-Sample-Rate" not in response
    found = decoded(await body_of(response))
    assert container in found[0]
    assert found[2] == pytest.approx(wav[2], abs=0.15)


async def test_pcm_and_the_default_format(speech: Api) -> None:
    wav = (await say(speech, response_format="wav")).content
    pcm = await say(speech, response_format="pcm")
    assert pcm["Content-Type"] == "audio/L16; rate=16000; channels=1"
    assert await body_of(pcm) == wav[44:]
    assert (await say(speech))["Content-Type"] == "audio/mpeg"


async def test_sentences_are_streamed(speech: Api) -> None:
    whole = (await say(speech, input=LONG, response_format="wav")).content[44:]
    response = await say(speech, input=LONG, response_format="pcm")
    assert response.streaming
    assert "Content-Length" not in response
    blocks = [block async for block in response.streaming_content]
    assert len(blocks) == 3
    assert b"".join(blocks) == whole
    streamed = await say(speech, input=LONG, response_format="wav", stream_format="audio")
    assert (await body_of(streamed))[44:] == whole


async def test_events(speech: Api) -> None:
    response = await say(speech, input=LONG, response_format="pcm", stream_format="sse")
    lines = (await body_of(response)).decode().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert [event["type"] for event in events] == ["speech.audio.delta"] * 3 + ["speech.audio.done"]
    assert set(events[-1]["usage"]) == {"input_tokens", "output_tokens", "total_tokens"}
    sound = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert sound == (await say(speech, input=LONG, response_format="wav")).content[44:]


async def test_speed_changes_the_duration(speech: Api) -> None:
    text = "hello hello hello hello hello"
    slow = decoded((await say(speech, input=text, response_format="wav", speed=0.5)).content)[2]
    fast = decoded((await say(speech, input=text, response_format="wav", speed=2.0)).content)[2]
    assert slow > 1.5 * fast


async def test_an_unknown_voice_is_named_in_the_header(speech: Api) -> None:
    response = await say(speech, voice="echo", instructions="Cheerfully.", response_format="wav")
    assert set(response["x-millm-ignored-fields"].split(", ")) == {"voice", "instructions"}


async def test_voices_of_the_admin(speech: Api) -> None:
    speech.registry.add(record("tts-shimmer", kind="speech", aliases=()))
    speech.registry.media["tts-shimmer"] = speech.registry.media["tts"]
    model = await LanguageModel.objects.acreate(name="tts", source="/nowhere", kind="speech")
    await Voice.objects.acreate(name="Anna", model=model, speaker="2")
    anna = await say(speech, model="no-such-model", voice="ANNA", response_format="wav")
    second = await say(speech, voice={"id": "2"}, response_format="wav")
    assert anna.status_code == 200
    assert anna.content == second.content
    listed = (await speech.client.get("/v1/audio/voices")).json()
    assert listed["object"] == "list"
    assert listed["data"] == listed["voices"]
    assert listed["data"][0] == {"id": "Anna", "name": "Anna", "object": "audio.voice", "model": "tts"}
    assert "alloy" in [voice["id"] for voice in listed["data"]]
    models = (await speech.client.get("/v1/audio/models")).json()
    assert [model["id"] for model in models["data"]] == ["tts", "tts-shimmer"]
    speech.log.entries.clear()
    await say(speech, voice="Shimmer")
    assert speech.log.only.model == "tts-shimmer"


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"model": "nobody"}, 404, "model", "model_not_found"),
        ({"model": "tiny"}, 400, "model", "wrong_model_kind"),
        ({"input": ""}, 400, "input", "invalid_value"),
        ({"input": "x" * 4_097}, 400, "input", "invalid_value"),
        ({"input": 5}, 400, "input", "invalid_type"),
        ({"voice": 5}, 400, "voice", "invalid_type"),
        ({"voice": {"name": "x"}}, 400, "voice", "invalid_type"),
        ({"voice": "x\x00"}, 400, "voice", "invalid_value"),
        ({"speed": 0.2}, 400, "speed", "invalid_value"),
        ({"speed": 1e400}, 400, None, "invalid_json"),
        ({"response_format": "midi"}, 400, "response_format", "invalid_value"),
        ({"stream_format": "x"}, 400, "stream_format", "invalid_value"),
    ],
)
async def test_bad_requests(speech: Api, fields: dict[str, Any], status: int, param: str | None, code: str) -> None:
    response = await say(speech, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, code), error


async def test_quota_in_characters(speech: Api) -> None:
    headers = speech.keys.add("key", media_per_day={"characters": 7})
    assert (await say(speech, headers)).status_code == 200
    response = await say(speech, headers)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "insufficient_quota")
    assert "2 of 7 characters" in response.json()["error"]["message"]


async def test_parameters_of_the_model(speech: Api) -> None:
    speech.registry.add(record("short", kind="speech", default_sampling={"max_input_chars": 3, "voice": "1"}))
    speech.registry.media["short"] = speech.registry.media["tts"]
    response = await say(speech, model="short")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input")
