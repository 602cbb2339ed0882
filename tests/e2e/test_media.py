"""Speech and its transcription in the console of a server with tiny models, in a browser."""

from __future__ import annotations

import time
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests import live
from tests.conftest import LiveSite, bare_site
from tests.e2e.test_console import AXE, RUN_AXE
from tests.e2e.visitor import Visitor
from tests.media.tiny import save_vits, save_whisper

pytestmark = [pytest.mark.browser, pytest.mark.live, pytest.mark.slow]
FINISHED = "Finished"
PLAYER, TRACK, CAPTION = (
    "document.querySelector('#try-result video')",
    "document.querySelector('#try-result track').track",
    "document.getElementById('try-caption')",
)


@pytest.fixture(scope="module")
def media_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    models = {
        "whisper": save_whisper(tmp_path_factory.mktemp("whisper")),
        "vits": save_vits(tmp_path_factory.mktemp("vits"), num_speakers=3),
    }
    with bare_site(tmp_path_factory.mktemp("media-site")) as site:
        added = [("add_model", name, str(path)) for name, path in models.items()]
        live.manage_all(added, environment=site.server.environment)
        yield site


@pytest.fixture
def live_site(media_site: LiveSite) -> LiveSite:
    """That which ``page`` logs in to."""
    return media_site


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "sound.wav"
    seconds = np.arange(16_000 * 40) / 16_000
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((3_000 * np.sin(900 * seconds)).astype("<i2").tobytes())
    return path


def wait_until(page: Page, condition: str) -> None:
    """The page's policy forbids Playwright's own way of waiting for a condition."""
    deadline = time.monotonic() + 120
    while not page.evaluate(f"() => Boolean({condition})"):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def problems_of(page: Page) -> list[str]:
    page.evaluate(AXE)
    return [f"{each['id']}: {node['html'][:160]}" for each in page.evaluate(RUN_AXE) for node in each["nodes"]]


def test_a_voice_is_made_and_heard(page: Page) -> None:
    visitor = Visitor(page)
    visitor.go("Voices")
    visitor.follow("Add voice")
    visitor.fill("Name:", "Rita")
    page.get_by_label("Model:").select_option(label="vits")
    visitor.fill("Speaker:", "2")
    visitor.press("Save and continue editing")
    visitor.press("Speak")
    expect(page.locator("#try-state")).to_contain_text(FINISHED, timeout=90_000)  # the process for media starts first
    player = page.locator("#try-result audio")
    expect(player).to_be_visible()
    wait_until(page, "document.querySelector('#try-result audio').duration > 0")
    assert problems_of(page) == []


def test_a_file_is_transcribed_with_captions(page: Page, live_site: LiveSite, sound: Path) -> None:
    visitor = Visitor(page)
    visitor.go("Models")
    visitor.follow("whisper")
    page.get_by_label("Audio or video file").set_input_files(sound)
    visitor.press("Transcribe")
    expect(page.locator("#try-state")).to_contain_text(FINISHED)
    wait_until(page, f"{TRACK}.cues?.length > 0")
    page.locator("#try-segments button").first.press("Enter")
    wait_until(page, f"{PLAYER}.currentTime >= {TRACK}.cues[0].startTime")
    page.evaluate(f"{PLAYER}.pause()")
    page.evaluate(f"{PLAYER}.currentTime = ({TRACK}.cues[0].startTime + {TRACK}.cues[0].endTime) / 2")
    wait_until(page, f"{TRACK}.activeCues.length > 0")
    wait_until(page, f"[...{TRACK}.activeCues].map(cue => cue.text).join('\\n') === {CAPTION}.textContent")
    assert problems_of(page) == []
    page.get_by_label("Format", exact=True).select_option(label="SRT")
    visitor.press("Transcribe")
    expect(page.locator("#try-answer")).to_contain_text(" --> ")
