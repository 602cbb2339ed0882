"""Audio, images and videos with OpenAI's client, the AI SDK, and the requests of Open WebUI."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millm_site.env import PROJECT_DIR
from tests.clients.environment import Report, run_node, run_python

PAGE = PROJECT_DIR / "docs" / "media.md"
PNG = list(b"\x89PNG")


@pytest.fixture(scope="module")
def openai(media_site: str) -> Report:
    return run_python("openai", "openai_media", media_site)


@pytest.fixture(scope="module")
def open_webui(media_site: str) -> Report:
    return run_python("litellm", "open_webui_media", media_site)


@pytest.fixture(scope="module")
def ai_sdk(media_site: str) -> Report:
    return run_node("ai_sdk_media", media_site)


def test_openai_audio(openai: Report) -> None:
    sizes = openai("speech")
    assert all(size > 100 for size in sizes.values())
    assert sizes["wav"] == sizes["pcm"] + 44
    assert openai("streamed_speech") > 1_000
    found = openai("transcriptions")
    assert found["mp3"] == pytest.approx(found["wav"], abs=0.2)
    assert found["opus"] == pytest.approx(found["flac"], abs=0.2)
    assert found["verbose"]["words"]
    assert found["verbose"]["duration"] == found["wav"]
    assert found["srt"].startswith("1\n00:00:")
    assert found["events"][-1] == "transcript.text.done"
    assert isinstance(found["english"], str)
    other = openai("other_models")
    assert other["bytes"] > 1_000
    assert other["seconds"] == pytest.approx((other["bytes"] - 44) / 32_000, abs=0.02)
    assert isinstance(other["text"], str)


def test_the_example_of_the_page(
    media_site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example.replace("http://127.0.0.1:8000", media_site), "docs/media.md", "exec"), {})  # noqa: S102
    assert (tmp_path / "hello.mp3").stat().st_size > 1_000
    assert capsys.readouterr().out.endswith("\n")


def test_openai_images(openai: Report) -> None:
    found = openai("images")
    assert (found["count"], found["start"], found["edited"], found["varied"]) == (2, PNG, 1, 1)
    assert found["events"] == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]


def test_openai_videos(openai: Report) -> None:
    expected = {"status": "completed", "progress": 100, "is_mp4": True, "listed": True, "deleted": True}
    assert openai("videos") == expected


def test_open_webui(open_webui: Report) -> None:
    assert open_webui("voices")["alloy"] == "alloy"
    assert open_webui("models") == ["tts-1", "speecht5"]
    assert open_webui("speech")["type"] == "audio/mpeg"
    assert isinstance(open_webui("transcription")["text"], str)
    assert open_webui("image") == {"count": 1, "start": PNG}
    assert open_webui("edit") == 1


def test_ai_sdk(ai_sdk: Report) -> None:
    speech = ai_sdk("speech")
    assert (speech["type"], speech["format"]) == ("audio/mpeg", "mp3")
    assert ai_sdk("transcription")["seconds"] > 0
    assert ai_sdk("image") == {"type": "image/png", "count": 2, "start": PNG}
