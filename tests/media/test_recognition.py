"""Recognition without Whisper gives what the library's own calls give for each piece of the audio."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.errors import MillmError
from media.decoder.process import RATE, Audio
from media.messages import ModelSpec, Segment, Transcribe
from media.worker.models import load
from media.worker.recognition import MAX_PIECE_S, MIN_PIECE_S, Recognizer, collapsed, pieces, quietest
from tests.media import tiny

SAVE = {
    "Wav2Vec2ForCTC": tiny.save_wav2vec2,
    "ParakeetForCTC": tiny.save_parakeet_ctc,
    "ParakeetForTDT": tiny.save_parakeet_tdt,
    "MoonshineForConditionalGeneration": tiny.save_moonshine,
}


@pytest.fixture(scope="module", params=SAVE)
def recognizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recognizer:
    folder = SAVE[request.param](tmp_path_factory.mktemp("recognizer"))
    model = load(ModelSpec("recognizer", "transcription", folder))
    assert isinstance(model, Recognizer)
    assert model.facts.architecture == request.param
    return model


def never() -> None:
    """Do not cancel."""


def transcribed(recognizer: Recognizer, audio: Audio, check: Callable[[], None] = never) -> list[Segment]:
    request = Transcribe("task", "recognizer", Path("unused"), 100, with_logprobs=True)
    _, *segments = recognizer.transcribe(audio, request, check)
    return [segment for segment in segments if isinstance(segment, Segment)]


@torch.inference_mode()
def text_of_library(recognizer: Recognizer, samples: Any) -> str:
    inputs = recognizer.processor(samples, sampling_rate=RATE, return_tensors="pt")
    if type(recognizer.model).__name__.endswith("ForCTC"):
        path = recognizer.model(**inputs).logits.argmax(-1)
        return str(recognizer.processor.batch_decode(path)[0])
    # The limits of their checkpoints: transducers choose tokens only, Moonshine writes 6.5 of them a second.
    num_tokens = recognizer.model.config.vocab_size
    limits: dict[str, Any]
    if type(recognizer.model).__name__ == "ParakeetForTDT":
        limits = {"suppress_tokens": [*range(num_tokens, num_tokens + len(recognizer.model.config.durations))]}
    else:
        limits = {"max_new_tokens": min(-int(-6.5 * len(samples) / RATE // 1), 47)}
    output = recognizer.model.generate(**inputs, **limits, return_dict_in_generate=True)
    return str(recognizer.processor.batch_decode(output.sequences, skip_special_tokens=True)[0])


@pytest.mark.parametrize("seconds", [3.0, 31.0])
def test_segments_are_the_texts_of_transformers(
    recognizer: Recognizer, recording: Callable[[float], Audio], seconds: float
):
    audio = recording(seconds)
    segments = transcribed(recognizer, audio)
    assert [segment.text.strip() for segment in segments] == [
        text_of_library(recognizer, audio.read(*place)).strip() for place in pieces(audio)
    ]
    assert [segment.id for segment in segments] == list(range(len(segments)))
    assert [segment.end for segment in segments[:-1]] == [segment.start for segment in segments[1:]]
    assert segments[-1].end == seconds
    for segment in segments:
        assert len(segment.tokens) == len(segment.logprobs) > 0
        assert all(each.logprob <= 0 and bytes(each.bytes).decode() == each.token for each in segment.logprobs)
        assert segment.avg_logprob == pytest.approx(np.mean([each.logprob for each in segment.logprobs]))


@pytest.mark.parametrize("seconds", [1 / RATE, 0.01, 0.05])
def test_very_short_audio_is_transcribed(recognizer: Recognizer, recording: Callable[[float], Audio], seconds: float):
    transcribed(recognizer, recording(seconds))


def test_a_cancelled_recognition_stops_in_a_piece(recognizer: Recognizer, recording: Callable[[float], Audio]):
    calls: list[None] = []

    def check() -> None:
        calls.append(None)
        if len(calls) == 2:  # the next piece, or the first token
            raise MillmError("cancelled")

    with pytest.raises(MillmError, match="cancelled"):
        transcribed(recognizer, recording(31.0), check)


def test_other_classes_are_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(MillmError, match="BertModel is not supported for transcriptions"):
        load(ModelSpec("bert", "transcription", tmp_path))
    (tmp_path / "config.json").write_text('{"architectures": ["NobodyForCTC"]}')
    with pytest.raises(MillmError, match="has no NobodyForCTC"):
        load(ModelSpec("nobody", "transcription", tmp_path))


def test_pieces_end_at_the_quietest_place(recording: Callable[[float], Audio]):
    places = list(pieces(recording(95.0)))
    assert places[0][0] == 0
    assert places[-1][1] == 95 * RATE
    assert [stop for _, stop in places[:-1]] == [start for start, _ in places[1:]]
    assert all(MIN_PIECE_S <= (stop - start) / RATE <= MAX_PIECE_S for start, stop in places[:-1])
    samples = np.ones(RATE, dtype=np.float32)
    samples[4_800:6_400] = 0.0
    assert quietest(samples) == 4_800 + 800


def test_repetitions_on_a_path_are_one_token():
    assert collapsed([5, 5, 0, 5, 7, 7]) == [(0, 5), (2, 0), (3, 5), (4, 7)]
