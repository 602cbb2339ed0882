"""Speech is what the library's own calls give at the same seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.errors import MillmError
from media.messages import ModelSpec, Speak
from media.sentences import MAX_SENTENCE, sentences
from media.worker import models
from media.worker.encoding import encode_audio
from media.worker.speech import PAUSE_S, FastSpeech2, Samples, Voice, numbered, speak, stretched
from tests.media import tiny
from tests.media.conftest import tone

NAN, INFINITE = float("nan"), float("inf")
EMBEDDING = (0.5, -0.25, 0.0, 0.125, 1.0, -1.0, 0.5, 0.25)


class Phonemes:
    """A tokenizer for FastSpeech2 without its package: a token for each letter, and the end."""

    def __call__(self, text: str, return_tensors: str) -> Any:
        from transformers import BatchEncoding

        ids = [ord(letter) % 38 + 1 for letter in text]
        return BatchEncoding({"input_ids": torch.tensor([[*ids, 0]])})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speech")


def load(folder: Path) -> Voice:
    voice: Voice = models.load(ModelSpec("voice", "speech", folder))
    return voice


@pytest.fixture(scope="module")
def vits(folder: Path) -> Voice:
    return load(tiny.save_vits(folder / "vits"))


@pytest.fixture(scope="module")
def speakers(folder: Path) -> Voice:
    return load(tiny.save_vits(folder / "speakers", num_speakers=3))


@pytest.fixture(scope="module")
def speecht5(folder: Path) -> Voice:
    return load(tiny.save_speecht5(folder / "speecht5"))


@pytest.fixture(scope="module")
def bark(folder: Path) -> Voice:
    return load(tiny.save_bark(folder / "bark"))


@pytest.fixture(scope="module")
def fastspeech2(folder: Path) -> Voice:
    return FastSpeech2(tiny.save_fastspeech2(folder / "fastspeech2"), "auto", "cpu", tokenizer=Phonemes())


def never() -> None:
    """Do not cancel."""


def spoken(voice: Voice, text: str, **fields: Any) -> list[Samples]:
    return list(speak(voice, Speak("task", "voice", text, "wav", **{"seed": 7, **fields}), never))


def failure(voice: Voice, text: str, **fields: Any) -> MillmError:
    with pytest.raises(MillmError) as raised:
        spoken(voice, text, **fields)
    assert raised.value.status == 400
    return raised.value


def check(found: list[Samples], run: Callable[[], Any]) -> None:
    """Compare the only sentence with the samples of the library's call at the same seed."""
    assert len(found) == 1
    assert len(found[0]) > 0
    torch.manual_seed(7)
    np.testing.assert_array_equal(found[0], run().numpy().reshape(-1))


def _waveform(model: Any, **inputs: Any) -> Any:
    return model(**inputs).waveform


@torch.inference_mode()
def test_vits(vits: Voice, folder: Path):
    from transformers import AutoTokenizer, VitsModel

    model: Any = VitsModel.from_pretrained(folder / "vits")
    inputs = AutoTokenizer.from_pretrained(folder / "vits")("hello there", return_tensors="pt")
    check(spoken(vits, "hello there"), lambda: model(**inputs).waveform)
    check(spoken(vits, "hello there", speed=2.0), lambda: model(**inputs, speaking_rate=2.0).waveform)
    assert (vits.sample_rate, vits.facts.sample_rate) == (16_000, 16_000)
    assert vits.facts.speakers == ()
    assert failure(vits, "hello", speaker="1").param == "voice"


@torch.inference_mode()
def test_vits_with_speakers(speakers: Voice, folder: Path):
    from transformers import AutoTokenizer, VitsModel

    model: Any = VitsModel.from_pretrained(folder / "speakers")
    inputs = AutoTokenizer.from_pretrained(folder / "speakers")("hello there", return_tensors="pt")
    assert speakers.facts.speakers == ("0", "1", "2")
    for speaker, number in [(None, 0), ("2", 2), (1, 1)]:
        check(
            spoken(speakers, "hello there", speaker=speaker),
            partial(_waveform, model, speaker_id=number, **inputs),
        )
    for hostile in ("3", "-1", "nobody", 2**63, NAN, (NAN,) * 100, ""):
        assert failure(speakers, "hello", speaker=hostile).message.startswith("The speaker must be between 0 and 2")


@torch.inference_mode()
def test_speecht5(speecht5: Voice, folder: Path):
    from transformers import SpeechT5ForTextToSpeech, SpeechT5HifiGan, SpeechT5Tokenizer

    model: Any = SpeechT5ForTextToSpeech.from_pretrained(folder / "speecht5")
    vocoder = SpeechT5HifiGan.from_pretrained(folder / "speecht5" / "vocoder")
    ids = SpeechT5Tokenizer.from_pretrained(folder / "speecht5")("hello", return_tensors="pt").input_ids
    for speaker in (None, EMBEDDING):
        embedding = torch.tensor([speaker or (0.0,) * 8])
        library = partial(model.generate_speech, ids, embedding, vocoder=vocoder)
        check(spoken(speecht5, "hello", speaker=speaker), library)
    weights = [*model.parameters(), *vocoder.parameters()]
    assert speecht5.facts.num_parameters == sum(each.numel() for each in weights)
    for hostile in ((NAN,) * 8, (INFINITE,) * 8, (1e300,) * 8, (0.0,) * 7, (), "v2/en_1", 1):
        assert failure(speecht5, "hello", speaker=hostile).param == "voice"


@torch.inference_mode()
def test_speecht5_imitates_a_recording(folder: Path):
    from transformers import SpeechT5ForTextToSpeech, SpeechT5HifiGan, SpeechT5Tokenizer, WavLMForXVector

    path = tiny.save_speecht5(folder / "imitator")
    encoder = WavLMForXVector.from_pretrained(tiny.save_speaker_encoder(path / "speaker_encoder"))
    voice = load(path)
    assert "recording" in voice.facts.abilities
    sound = tone(2.0).astype(np.float32) / np.float32(32_768)
    recording = encode_audio(sound, 16_000, "flac")
    normal = torch.tensor((sound - sound.mean()) / np.sqrt(sound.var() + 1e-7))[None]
    embedding = torch.nn.functional.normalize(encoder(normal).embeddings, dim=-1)
    model: Any = SpeechT5ForTextToSpeech.from_pretrained(path)
    vocoder = SpeechT5HifiGan.from_pretrained(path / "vocoder")
    ids = SpeechT5Tokenizer.from_pretrained(path)("hello", return_tensors="pt").input_ids
    library = partial(model.generate_speech, ids, embedding, vocoder=vocoder)
    check(spoken(voice, "hello", reference=recording), library)


@torch.inference_mode()
def test_bark(bark: Voice, folder: Path):
    from transformers import AutoProcessor, BarkModel

    model: Any = BarkModel.from_pretrained(folder / "bark")
    processor: Any = AutoProcessor.from_pretrained(folder / "bark")
    assert bark.facts.speakers == ("v2/en_1",)
    for speaker in (None, "v2/en_1"):
        library = partial(model.generate, **processor("hello", voice_preset=speaker))
        check(spoken(bark, "hello", speaker=speaker), library)
    for hostile in ("v2/en_2", "repo_or_path", "../../etc/passwd", "", 0, EMBEDDING):
        assert "has no speaker" in failure(bark, "hello", speaker=hostile).message


def test_files_of_a_speaker_that_cannot_be_read_are_named(bark: Voice, folder: Path):
    file = folder / "bark" / "speaker_embeddings" / "en_1_fine_prompt.npy"
    content = file.read_bytes()
    file.write_bytes(b"\x80\x04N.")  # a pickle
    try:
        assert "cannot be read" in failure(bark, "hello", speaker="v2/en_1").message
    finally:
        file.write_bytes(content)


@torch.inference_mode()
def test_fastspeech2(fastspeech2: Voice, folder: Path):
    from transformers import FastSpeech2ConformerWithHifiGan

    model: Any = FastSpeech2ConformerWithHifiGan.from_pretrained(folder / "fastspeech2")
    ids = Phonemes()("hello", "pt").input_ids
    for speaker, number in [(None, 0), ("1", 1)]:
        expected = model(ids, speaker_ids=torch.tensor([[number]])).waveform
        check(spoken(fastspeech2, "hello", speaker=speaker), partial(torch.clone, expected))
    assert fastspeech2.sample_rate == 22_050


def test_models_that_cannot_be_spoken_are_refused(folder: Path, tmp_path: Path):
    tiny.save_fastspeech2(tmp_path / "fastspeech2")
    with pytest.raises(MillmError, match="needs the package `g2p-en`"):
        load(tmp_path / "fastspeech2")
    tiny.save_vits(tmp_path / "vits", phonemize=True)
    with pytest.raises(MillmError, match="needs the package `phonemizer`"):
        load(tmp_path / "vits")
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(MillmError, match=r"BertModel is not supported\. Supported: VitsModel, SpeechT5ForTextToSpeech"):
        load(tmp_path)


def test_sentences_are_spoken_one_by_one_with_pauses(vits: Voice):
    both = spoken(vits, "hello there. hello there.")
    assert len(both) == 2
    pause = int(PAUSE_S * vits.sample_rate)
    assert not both[1][:pause].any()
    assert both[1][pause:].any()
    assert not np.array_equal(both[0], both[1][pause:])  # each has its own seed
    np.testing.assert_array_equal(both[1][pause:], spoken(vits, "hello there.", seed=8)[0])


def test_sentences_without_sound_are_left_out(vits: Voice):
    found = spoken(vits, "!!! hello there. 日本語。 ???")
    assert len(found) == 1
    assert found[0][0] != 0  # no pause before the first


@pytest.mark.parametrize("text", ["", " ", ".", "日本語", "\n\n\n", "\0", "🙂" * 4_096])
def test_texts_without_sound_are_refused(vits: Voice, speecht5: Voice, text: str):
    for voice in (vits, speecht5):
        if voice is vits or text != ".":
            assert failure(voice, text).param == "input"


def test_a_text_without_spaces_is_cut(vits: Voice):
    assert len(spoken(vits, "b" * 1_000)) == -(-1_000 // (MAX_SENTENCE - 1))


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, 2**64])
def test_all_seeds_are_accepted(vits: Voice, seed: int):
    np.testing.assert_array_equal(spoken(vits, "hello", seed=seed)[0], spoken(vits, "hello", seed=seed)[0])


def test_without_a_seed_speech_differs_even_after_one_with_a_seed(vits: Voice):
    spoken(vits, "hello", seed=1)
    first = spoken(vits, "hello", seed=None)[0]
    spoken(vits, "hello", seed=1)
    assert not np.array_equal(first, spoken(vits, "hello", seed=None)[0])


@pytest.mark.parametrize("speed", [0.0, -1.0, NAN, INFINITE, 0.2, 4.1])
def test_other_speeds_are_refused(vits: Voice, speed: float):
    assert failure(vits, "hello", speed=speed).param == "speed"


def test_recordings_cannot_be_imitated(vits: Voice):
    assert "cannot imitate" in failure(vits, "hello", reference=b"fLaC").message


def test_a_cancelled_speech_stops_between_sentences(vits: Voice):
    calls: list[None] = []

    def check() -> None:
        calls.append(None)
        if len(calls) == 2:
            raise MillmError("cancelled")

    with pytest.raises(MillmError, match="cancelled"):
        list(speak(vits, Speak("task", "voice", "hello there. " * 5, "wav"), check))
    assert len(calls) == 2


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.8, 1.0, 1.5, 2.0, 4.0])
def test_the_speed_keeps_the_pitch(speed: float):
    rate = 24_000
    samples = (0.5 * np.sin(2 * np.pi * 440 * np.arange(2 * rate) / rate)).astype(np.float32)
    found = stretched(samples, speed)
    assert len(found) == pytest.approx(len(samples) / speed, rel=0.05)
    pitch = np.abs(np.fft.rfft(found)).argmax() * rate / len(found)
    assert pitch == pytest.approx(440, abs=5)


@given(text=st.text(max_size=1_500), separator=st.sampled_from([" ", ", ", ". ", "", "\n", "。"]))
def test_sentences_are_neither_empty_nor_too_long(text: str, separator: str):
    found = sentences(separator.join([text] * 3))
    assert all(0 < len(each) <= MAX_SENTENCE for each in found)


def test_a_number_of_a_speaker_is_needed_where_there_are_several():
    assert numbered(None, 2) == 0
    assert numbered(None, 1) is None
