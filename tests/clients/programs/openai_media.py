"""OpenAI's own client: ``client.audio``, ``client.images`` and ``client.videos``."""

from __future__ import annotations

import base64
import io
from typing import Any

from cases import case, main
from openai import OpenAI

_kept: dict[str, bytes] = {}


def client_of(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@case
def speech(url: str) -> Any:
    audio = client_of(url).audio.speech
    found = {}
    for name in ("mp3", "opus", "aac", "flac", "wav", "pcm"):
        made = audio.create(
            model="tts-1", voice="alloy", input="hello you", response_format=name, extra_body={"seed": 1}
        )
        _kept[name] = made.content
        found[name] = len(_kept[name])
    return found


@case
def streamed_speech(url: str) -> Any:
    create = client_of(url).audio.speech.with_streaming_response.create
    with create(model="tts-1", voice="alloy", input="hello. how are you?", response_format="pcm") as response:
        return sum(len(block) for block in response.iter_bytes())


@case
def transcriptions(url: str) -> Any:
    create = client_of(url).audio.transcriptions.create
    found: dict[str, Any] = {}
    for name in ("mp3", "opus", "flac", "wav"):
        found[name] = create(model="whisper-1", file=(f"speech.{name}", _kept[name])).usage.seconds
    wav = ("speech.wav", _kept["wav"])
    verbose = create(
        model="whisper-1",
        file=wav,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
        temperature=0.0,
    )
    found["verbose"] = {"duration": verbose.duration, "text": verbose.text, "words": verbose.words is not None}
    found["srt"] = create(model="whisper-1", file=wav, response_format="srt")
    found["events"] = [event.type for event in create(model="whisper-1", file=wav, stream=True)]
    found["english"] = client_of(url).audio.translations.create(model="whisper-1", file=wav).text
    return found


@case
def other_models(url: str) -> Any:
    """SpeechT5 speaks, and Parakeet writes."""
    audio = client_of(url).audio
    made = audio.speech.create(model="speecht5", voice="alloy", input="hello you", response_format="wav")
    written = audio.transcriptions.create(model="parakeet", file=("speech.wav", made.content), response_format="json")
    return {"bytes": len(made.content), "seconds": written.usage.seconds, "text": written.text}


@case
def images(url: str) -> Any:
    images = client_of(url).images
    made = images.generate(model="gpt-image-1", prompt="a cat", size="64x64", n=2, extra_body={"seed": 1, "steps": 2})
    png = base64.b64decode(made.data[0].b64_json)
    edited = images.edit(model="gpt-image-1", image=("a.png", io.BytesIO(png)), prompt="a dog", size="64x64")
    varied = images.create_variation(model="gpt-image-1", image=("a.png", io.BytesIO(png)), size="64x64")
    stream = images.generate(
        model="gpt-image-1",
        prompt="a cat",
        size="64x64",
        stream=True,
        partial_images=2,
        extra_body={"seed": 1, "steps": 4},
    )
    return {
        "count": len(made.data),
        "start": list(png[:4]),
        "edited": len(edited.data),
        "varied": len(varied.data),
        "events": [event.type for event in stream],
    }


@case
def videos(url: str) -> Any:
    videos = client_of(url).videos
    made = videos.create_and_poll(
        model="sora-2",
        prompt="a cat",
        seconds="1",
        size="32x32",
        extra_body={"fps": 5, "steps": 2},
        poll_interval_ms=200,
    )
    content = videos.download_content(made.id).read()
    listed = [video.id for video in videos.list()]
    deleted = videos.delete(made.id)
    return {
        "status": made.status,
        "progress": made.progress,
        "is_mp4": content[4:8] == b"ftyp",
        "listed": made.id in listed,
        "deleted": deleted.deleted,
    }


if __name__ == "__main__":
    main()
