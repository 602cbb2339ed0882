"""Words and their times are those of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from media.decoder.process import RATE, Audio
from media.messages import Segment, Transcribe
from media.worker.alignment import median_filter, warped, words_of
from media.worker.whisper import HOP, Whisper
from tests.media.tiny import whisper_tokenizer

OPTIONS = {"num_beams": 1, "do_sample": False, "condition_on_prev_tokens": False}
SENTENCES = [
    "the quick brown fox",
    " hello (world), how are you today?",
    " it's 10.5% “quoted” - and [more] ... end!",
    " 今日は、いい天気ですね。",
    " Füße 👩‍👩‍👧 ça va\ufffd ?",
    "",
]


@pytest.fixture(scope="module")
def whisper(whisper_path: Path) -> Whisper:
    return Whisper(whisper_path, "auto", "cpu")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return whisper_tokenizer()


def never() -> None:
    """Do not cancel."""


def segments(whisper: Whisper, audio: Audio, **fields: Any) -> list[Segment]:
    request = Transcribe("task", "whisper", Path("unused"), 3_600, language="en", with_words=True, **fields)
    return [found for found in whisper.transcribe(audio, request, never) if isinstance(found, Segment)]


@pytest.mark.parametrize("seconds", [0.3, 5.0, 29.98, 33.0])
def test_words_are_those_of_transformers(whisper: Whisper, recording: Callable[[float], Audio], seconds: float):
    """Compare with the words that transformers' pipeline makes of the token times that its ``generate`` returns."""
    from transformers.models.whisper.tokenization_whisper import _collate_word_timestamps

    audio = recording(seconds)
    options = {"truncation": False, "padding": "longest"} if seconds > 30 else {}
    inputs = whisper.extractor(
        audio.read(0, audio.num_samples), sampling_rate=RATE, return_tensors="pt", return_attention_mask=True, **options
    )
    found = segments(whisper, audio, temperature=1e-9)
    whisper.model.set_attn_implementation("eager")
    num_frames = -(-audio.num_samples // HOP)
    expected = whisper.model.generate(
        inputs.input_features[:, :, :num_frames],
        attention_mask=inputs.attention_mask[:, :num_frames],
        return_timestamps=True,
        return_segments=True,
        return_token_timestamps=True,
        language="en",
        task="transcribe",
        **OPTIONS,
    )["segments"][0]
    whisper.model.set_attn_implementation("sdpa")
    assert [segment.tokens for segment in found] == [tuple(each["tokens"].tolist()) for each in expected]
    for segment, each in zip(found, expected, strict=True):
        tokens, ends = each["tokens"].tolist(), [round(end, 2) for end in each["token_timestamps"].tolist()]
        # A segment starts with a timestamp, whose own time is where its first word starts.
        pairs = [(token, (ends[place - 1], ends[place])) for place, token in enumerate(tokens) if token < whisper._end]
        text_tokens, times = [token for token, _ in pairs], [time for _, time in pairs]
        words = _collate_word_timestamps(whisper.tokenizer, text_tokens, times, "english", return_language=False)
        assert [(word.word, (word.start, word.end)) for word in segment.words] == [
            (word["text"].strip(), word["timestamp"]) for word in words if word["text"].strip()
        ]
    assert any(segment.words for segment in found)


def test_words_come_in_order_within_the_audio(whisper: Whisper, recording: Callable[[float], Audio]):
    for segment in segments(whisper, recording(31.0), temperature=1e-9):
        times = [time for word in segment.words for time in (word.start, word.end)]
        assert times == sorted(times)
        assert all(0 <= time <= 31.0 for time in times)
        assert "".join(word.word for word in segment.words) == "".join(segment.text.split())


def test_words_cost_nothing_without_the_request(whisper: Whisper, recording: Callable[[float], Audio]):
    request = Transcribe("task", "whisper", Path("unused"), 3_600, language="en", temperature=1e-9)
    found = list(whisper.transcribe(recording(3.0), request, never))
    assert not any(each.words for each in found if isinstance(each, Segment))
    assert whisper.model.config._attn_implementation == "sdpa"
    assert "words" in whisper.facts.abilities


@pytest.mark.parametrize("sentence", SENTENCES)
@pytest.mark.parametrize(("code", "language"), [("en", "english"), ("ja", "japanese")])
def test_tokens_are_joined_as_transformers_joins_them(tokenizer: Any, sentence: str, code: str, language: str):
    from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

    tokens = tokenizer.encode(sentence, add_special_tokens=False)
    words, _, places = _combine_tokens_into_words(tokenizer, tokens, language)
    assert words_of(tokenizer, tokens, code) == [
        (word, indices[0], indices[-1] + 1) for word, indices in zip(words, places, strict=True)
    ]


@given(tokens=st.lists(st.integers(0, 255), max_size=12), code=st.sampled_from(["en", "zh"]))
def test_any_tokens_are_joined_without_loss(tokenizer: Any, tokens: list[int], code: str):
    found = words_of(tokenizer, tokens, code)
    assert [start for _, start, _ in found] == [0, *(stop for _, _, stop in found)][: len(found)]
    assert all(start < stop <= len(tokens) for _, start, stop in found)


@given(
    matrix=arrays(
        np.float64,
        st.tuples(st.integers(1, 9), st.integers(1, 12)),
        elements=st.one_of(st.integers(-2, 2).map(float), st.floats(-3, 3, width=32)),
    )
)
def test_the_path_is_that_of_transformers(matrix: Any):
    from transformers.models.whisper.generation_whisper import _dynamic_time_warping

    rows, columns = _dynamic_time_warping(matrix)
    assert warped(matrix) == [int(columns[rows == row].min()) for row in range(len(matrix))]


@pytest.mark.parametrize("width", [1, 3, 7])
@pytest.mark.parametrize("size", [1, 3, 4, 50])
def test_the_filter_is_that_of_transformers(width: int, size: int):
    from transformers.models.whisper.generation_whisper import _median_filter

    weights = torch.rand(2, 5, size)
    assert torch.equal(median_filter(weights, width), _median_filter(weights, width))
