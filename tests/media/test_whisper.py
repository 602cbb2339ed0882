"""Whisper in windows gives what transformers gives for the features of the whole file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from media.decoder.process import RATE, Audio
from media.messages import Segment, Transcribe
from media.worker.whisper import HOP, Features, Whisper, slices_of

GREEDY = {"num_beams": 1, "do_sample": False, "condition_on_prev_tokens": False}


@pytest.fixture(scope="module")
def whisper(whisper_path: Path) -> Whisper:
    return Whisper(whisper_path, "auto", "cpu")


def never() -> None:
    """Do not cancel."""


def request(**fields: Any) -> Transcribe:
    return Transcribe("task", "whisper", Path("unused"), 3_600, **{"language": "en", **fields})


def plain(segments: Any) -> list[tuple[float, float, tuple[int, ...]]]:
    return [(round(float(s["start"]), 2), round(float(s["end"]), 2), tuple(s["tokens"].tolist())) for s in segments]


@pytest.mark.parametrize("seconds", [0.3, 5.0, 30.0, 62.3])
def test_segments_are_those_of_transformers(whisper: Whisper, recording: Callable[[float], Audio], seconds: float):
    audio = recording(seconds)
    # One attempt per window: whether a second one is needed is decided by thresholds, which transformers has too.
    language, *segments = whisper.transcribe(audio, request(temperature=1e-9), never)
    options = {"truncation": False, "padding": "longest"} if seconds > 30 else {}
    samples = audio.read(0, audio.num_samples)
    features = whisper.extractor(samples, sampling_rate=RATE, return_tensors="pt", **options).input_features
    expected = whisper.model.generate(
        features[:, :, : int(seconds * RATE) // HOP],  # the padding is not audio
        return_timestamps=True,
        return_segments=True,
        language="en",
        task="transcribe",
        **GREEDY,
    )
    assert language == "en"
    found = [segment for segment in segments if isinstance(segment, Segment)]
    assert [(s.start, s.end, s.tokens) for s in found] == plain(expected["segments"][0])
    assert seconds < 30 or len({segment.seek for segment in found}) > 1


def test_prompts_precede_the_text_as_in_transformers(whisper: Whisper, recording: Callable[[float], Audio]):
    audio, prompt = recording(5.0), "The quick brown fox, hello"
    _, *segments = whisper.transcribe(audio, request(temperature=1e-9, prompt=prompt), never)
    samples = audio.read(0, audio.num_samples)
    expected = whisper.model.generate(
        whisper.extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features[:, :, :500],
        prompt_ids=torch.tensor(whisper.tokenizer.get_prompt_ids(prompt)),
        return_timestamps=True,
        return_segments=True,
        language="en",
        task="transcribe",
        **GREEDY,
    )
    found = [segment for segment in segments if isinstance(segment, Segment)]
    assert [(s.start, s.end, s.tokens) for s in found] == plain(expected["segments"][0])
    _, *others = whisper.transcribe(audio, request(temperature=1e-9), never)
    assert [s.tokens for s in others if isinstance(s, Segment)] != [s.tokens for s in found]


def test_features_of_windows_are_those_of_the_file(whisper: Whisper, recording: Callable[[float], Audio]):
    audio = recording(95.0)
    features = Features(audio, whisper.extractor, never)
    whole = whisper.extractor(
        audio.read(0, audio.num_samples),
        sampling_rate=RATE,
        truncation=False,
        padding="longest",
        return_tensors="pt",
    ).input_features[0]
    for start in (0, 1, 2_999, 3_000, 6_501, 9_499):
        window = features.read(start)
        size = min(features.window, features.num_frames - start)
        assert torch.allclose(window[0, :, :size], whole[:, start : start + size], atol=1e-5)
        assert not window[0, :, size:].any()


def test_the_language_is_detected_as_transformers_does(whisper: Whisper, recording: Callable[[float], Audio]):
    audio = recording(5.0)
    language = next(whisper.transcribe(audio, request(language=None), never))
    features = Features(audio, whisper.extractor, never).read(0)
    token = whisper.model.detect_language(features)
    assert whisper.tokenizer.decode(token) == f"<|{language}|>"


@pytest.mark.parametrize("num_calls", [1, 4, 40])
def test_a_cancelled_transcription_stops_at_the_next_token(
    whisper: Whisper, recording: Callable[[float], Audio], num_calls: int
):
    class CancelledError(Exception):
        pass

    calls: list[None] = []

    def check() -> None:
        calls.append(None)
        if len(calls) == num_calls:
            raise CancelledError

    with pytest.raises(CancelledError):
        list(whisper.transcribe(recording(75.0), request(), check))
    assert len(calls) == num_calls


def test_prompts_keep_their_last_224_tokens(whisper: Whisper):
    ids = whisper._prompt_ids("hello " * 1_000)
    assert ids[0] == whisper._previous
    assert len(ids) == 225
    special = whisper._prompt_ids("<|endoftext|><|en|><|0.00|>")
    assert all(number < whisper._end for number in special[1:])


@given(
    tokens=st.lists(st.one_of(st.integers(0, 9), st.integers(100, 160)), min_size=1, max_size=30),
    num_frames=st.integers(1, 3_000),
)
def test_windows_always_advance_and_segments_lie_in_them(tokens: list[int], num_frames: int):
    slices, advance = slices_of(tokens, 100, num_frames)
    assert all(0 <= place.start < place.stop <= len(tokens) for place in slices)
    assert [place.start for place in slices[1:]] == [place.stop for place in slices[:-1]]
    assert 0 < advance <= num_frames
