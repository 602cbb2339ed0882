"""Fixtures of the tests of media: tiny models and files."""

from __future__ import annotations

import tempfile
import wave
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from media.decoder.process import RATE, Audio
from tests.media.tiny import save_whisper


@pytest.fixture(scope="session")
def whisper_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_whisper(tmp_path_factory.mktemp("whisper"))


def tone(seconds: float) -> npt.NDArray[np.int16]:
    """Return samples of a tone that changes, and noise."""
    time = np.arange(round(RATE * seconds)) / RATE
    shape = 0.15 * np.sin(2 * np.pi * (200 + 100 * np.sin(time)) * time) * (1 + np.sin(0.7 * time))
    samples = shape + 0.02 * np.random.default_rng(1).standard_normal(len(time))
    return (samples * 32_767).astype("<i2")


def write_wav(path: Path, seconds: float) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(tone(seconds).tobytes())
    return path


@pytest.fixture
def sound(tmp_path: Path) -> Callable[[float], Path]:
    """Return a function that writes a WAV file of that many seconds."""

    def write(seconds: float) -> Path:
        return write_wav(tmp_path / f"{seconds}.wav", seconds)

    return write


@pytest.fixture
def recording() -> Iterator[Callable[[float], Audio]]:
    """Return a function that makes decoded audio of that many seconds, without a decoder."""
    with ExitStack() as stack:

        def make(seconds: float) -> Audio:
            file = stack.enter_context(tempfile.TemporaryFile())
            file.write(tone(seconds).tobytes())
            file.flush()
            return Audio(file, "wav")

        yield make
