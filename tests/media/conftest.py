"""Fixtures of the tests of media: tiny models and files."""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from media.decoder.process import RATE
from tests.media.tiny import save_whisper


@pytest.fixture(scope="session")
def whisper_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture
def sound(tmp_path: Path) -> Callable[[float], Path]:
    """Return a function that writes a WAV file of that many seconds: a tone that changes, and noise."""

    def write(seconds: float) -> Path:
        time = np.arange(int(RATE * seconds)) / RATE
        tone = 0.15 * np.sin(2 * np.pi * (200 + 100 * np.sin(time)) * time) * (1 + np.sin(0.7 * time))
        samples = tone + 0.02 * np.random.default_rng(1).standard_normal(len(time))
        path = tmp_path / f"{seconds}.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes((samples * 32_767).astype("<i2").tobytes())
        return path

    return write
