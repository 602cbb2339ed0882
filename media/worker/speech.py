"""Text to speech with the classes of transformers: VITS and MMS, SpeechT5, Bark, FastSpeech2Conformer.

Text is split into sentences, and each is spoken by itself, so that the first is sent before the last is computed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.errors import MillmError
from media.decoder.process import RATE
from media.messages import ModelFacts, Speak
from media.sentences import sentences
from media.worker.encoding import decode_flac
from media.worker.loading import WORD_START, UnsupportedModelError, load_pretrained, model_facts

Samples = npt.NDArray[np.float32]
Speaker = int | str | tuple[float, ...] | None
PAUSE_S = 0.15  # between sentences
SPEEDS = (0.25, 4.0)
FASTSPEECH2_RATE = 22_050  # Hz; the class's configuration does not name it
MAX_QUOTED = 60  # characters of a speaker in a message


class SpeakerError(MillmError):
    """The model does not have the speaker."""

    code = "invalid_value"
    param = "voice"


class InputError(MillmError):
    """The model cannot speak the text."""

    code = "invalid_value"
    param = "input"


class Voice(Protocol):
    """A loaded model of one class."""

    sample_rate: int
    facts: ModelFacts

    def speak(self, text: str, speaker: Speaker, speed: float) -> Samples:
        """Return the samples of a sentence, from -1 to 1. Raise SpeakerError."""


def speak(voice: Voice, request: Speak, check: Callable[[], None]) -> Iterator[Samples]:
    """Yield the samples of each sentence, with pauses between them. ``check`` is called before each; it may raise.

    Raise InputError if the model finds nothing to speak in the text.
    """
    speaker = request.speaker if request.reference is None else imitated(voice, request.reference)
    if not SPEEDS[0] <= request.speed <= SPEEDS[1]:
        message = f"`speed` must be between {SPEEDS[0]} and {SPEEDS[1]}, got {request.speed}."
        raise InputError(message, param="speed")
    pause = np.zeros(int(PAUSE_S * voice.sample_rate), dtype=np.float32)
    has_spoken = False
    for number, sentence in enumerate(sentences(request.text)):
        check()
        torch.manual_seed(secrets.randbits(63) if request.seed is None else (request.seed + number) % 2**63)
        samples = voice.speak(sentence, speaker, request.speed)
        if not len(samples):
            continue
        samples = np.nan_to_num(samples, nan=0.0, posinf=1.0, neginf=-1.0)
        yield np.concatenate([pause, samples]) if has_spoken else samples
        has_spoken = True
    if not has_spoken:
        raise InputError("The model found nothing to speak in `input`: it knows none of its characters.")


def imitated(voice: Voice, reference: bytes) -> Speaker:
    """Return the speaker's embedding of a recording. Raise SpeakerError."""
    encoder: SpeakerEncoder | None = getattr(voice, "encoder", None)
    if encoder is None:
        raise SpeakerError("This model cannot imitate a recording; use a voice with a speaker or an embedding.")
    return encoder.embed(reference)


class SpeakerEncoder:
    """A model that gives the embedding of a speaker, such as WavLMForXVector."""

    def __init__(self, path: Path, dtype: str, device: str) -> None:
        from transformers import AutoFeatureExtractor, AutoModelForAudioXVector

        self.model: Any = load_pretrained(AutoModelForAudioXVector, path, dtype, device)
        self._extractor: Any = AutoFeatureExtractor.from_pretrained(path)

    def embed(self, recording: bytes) -> tuple[float, ...]:
        """Return the embedding, of length 1, of a FLAC that this server wrote."""
        inputs = self._extractor(decode_flac(recording, RATE), sampling_rate=RATE, return_tensors="pt")
        with torch.inference_mode():
            found = self.model(**inputs.to(self.model.device, self.model.dtype)).embeddings[0]
        return tuple(torch.nn.functional.normalize(found.float(), dim=0).tolist())


class Vits:
    """VITS and MMS. Speakers are numbers."""

    def __init__(self, path: Path, dtype: str, device: str) -> None:
        from transformers import AutoTokenizer, VitsModel

        self._model: Any = load_pretrained(VitsModel, path, dtype, device)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        if self._tokenizer.phonemize and find_spec("phonemizer") is None:
            raise UnsupportedModelError("The model needs the package `phonemizer`, which is not installed.")
        config = self._model.config
        self.sample_rate = int(config.sampling_rate)
        self._num_speakers = int(config.num_speakers)
        self.facts = model_facts(
            self._model,
            sample_rate=self.sample_rate,
            speakers=numbers(self._num_speakers),
            abilities=frozenset({"speed"}),
        )

    def speak(self, text: str, speaker: Speaker, speed: float) -> Samples:
        inputs = self._tokenizer(text=text, return_tensors="pt").to(self._model.device)
        if inputs["input_ids"].shape[-1] == 0:  # nothing that the tokenizer knows
            return np.zeros(0, dtype=np.float32)
        rate = float(self._model.config.speaking_rate) * speed
        chosen = numbered(speaker, self._num_speakers)
        with torch.inference_mode():
            output = self._model(**inputs, speaker_id=chosen, speaking_rate=rate)
        return _as_samples(output.waveform[0])


class SpeechT5:
    """SpeechT5 with its vocoder, which lies in the folder ``vocoder`` of the model. Speakers are embeddings.

    A model in the folder ``speaker_encoder`` takes them from recordings.
    """

    def __init__(self, path: Path, dtype: str, device: str) -> None:
        from transformers import SpeechT5ForTextToSpeech, SpeechT5HifiGan, SpeechT5Tokenizer

        self._model: Any = load_pretrained(SpeechT5ForTextToSpeech, path, dtype, device)
        self._vocoder: Any = load_pretrained(SpeechT5HifiGan, path / "vocoder", dtype, device)
        self._tokenizer: Any = SpeechT5Tokenizer.from_pretrained(path)
        names = (self._tokenizer.unk_token, self._tokenizer.eos_token, WORD_START)
        self._silent = frozenset(self._tokenizer.convert_tokens_to_ids(list(names)))  # tokens without a sound
        self.sample_rate = int(self._vocoder.config.sampling_rate)
        folder = path / "speaker_encoder"
        self.encoder = SpeakerEncoder(folder, dtype, device) if folder.is_dir() else None
        encoders = () if self.encoder is None else (self.encoder.model,)
        self.facts = model_facts(
            self._model,
            self._vocoder,
            *encoders,
            sample_rate=self.sample_rate,
            abilities=frozenset({"recording"} if encoders else ()),
        )

    def speak(self, text: str, speaker: Speaker, speed: float) -> Samples:
        ids = self._tokenizer(text=text, return_tensors="pt").input_ids.to(self._model.device)
        if self._silent.issuperset(ids[0].tolist()):
            return np.zeros(0, dtype=np.float32)
        width = int(self._model.config.speaker_embedding_dim)
        embedding = embedded(speaker, width).to(self._model.device, self._model.dtype)
        with torch.inference_mode():
            samples = self._model.generate_speech(ids, embedding, vocoder=self._vocoder)
        return stretched(_as_samples(samples), speed)


class Bark:
    """Bark. Speakers are the names of presets in the model's folder."""

    def __init__(self, path: Path, dtype: str, device: str) -> None:
        from transformers import AutoProcessor, BarkModel

        self._model: Any = load_pretrained(BarkModel, path, dtype, device)
        self._processor: Any = AutoProcessor.from_pretrained(path)
        self.sample_rate = int(self._model.generation_config.sample_rate)
        self._presets = tuple(sorted(self._processor.available_voice_presets))
        self.facts = model_facts(self._model, sample_rate=self.sample_rate, speakers=self._presets)

    def speak(self, text: str, speaker: Speaker, speed: float) -> Samples:
        if speaker is not None and speaker not in self._presets:
            raise SpeakerError(f"The model has no speaker `{quoted(speaker)}`.")
        try:
            inputs = self._processor(text, voice_preset=speaker).to(self._model.device)
        except (OSError, ValueError) as error:
            raise SpeakerError(f"The files of the speaker `{speaker}` cannot be read.") from error
        with torch.inference_mode():
            samples = self._model.generate(**inputs)[0]
        return stretched(_as_samples(samples), speed)


class FastSpeech2:
    """FastSpeech2Conformer with its HiFi-GAN in one checkpoint. Speakers are numbers."""

    def __init__(self, path: Path, dtype: str, device: str, tokenizer: Any = None) -> None:
        from transformers import FastSpeech2ConformerTokenizer, FastSpeech2ConformerWithHifiGan

        if tokenizer is None and find_spec("g2p_en") is None:
            raise UnsupportedModelError("The model needs the package `g2p-en`, which is not installed.")
        self._model: Any = load_pretrained(FastSpeech2ConformerWithHifiGan, path, dtype, device)
        self._tokenizer: Any = tokenizer or FastSpeech2ConformerTokenizer.from_pretrained(path)
        self.sample_rate = int(getattr(self._model.config.vocoder_config, "sampling_rate", FASTSPEECH2_RATE))
        self._num_speakers = int(self._model.config.model_config.num_speakers or 1)
        self.facts = model_facts(self._model, sample_rate=self.sample_rate, speakers=numbers(self._num_speakers))

    def speak(self, text: str, speaker: Speaker, speed: float) -> Samples:
        ids = self._tokenizer(text, return_tensors="pt").input_ids.to(self._model.device)
        number = numbered(speaker, self._num_speakers)
        chosen = None if number is None else torch.tensor([[number]], device=self._model.device)
        with torch.inference_mode():
            samples = self._model(ids, speaker_ids=chosen, return_dict=True).waveform[0]
        return stretched(_as_samples(samples), speed)


CLASSES: dict[str, Callable[[Path, str, str], Voice]] = {
    "VitsModel": Vits,
    "SpeechT5ForTextToSpeech": SpeechT5,
    "BarkModel": Bark,
    "FastSpeech2ConformerWithHifiGan": FastSpeech2,
}


def numbers(num_speakers: int) -> tuple[str, ...]:
    """Return the names of numbered speakers; none where there is one."""
    return tuple(map(str, range(num_speakers))) if num_speakers > 1 else ()


def numbered(speaker: Speaker, num_speakers: int) -> int | None:
    """Return the number of a speaker, 0 by default. None: the model has one speaker."""
    if num_speakers <= 1:
        if speaker is not None:
            raise SpeakerError(f"The model has one speaker, got `{quoted(speaker)}`.")
        return None
    if speaker is None:
        return 0
    try:
        number = int(speaker)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < num_speakers:
        raise SpeakerError(f"The speaker must be between 0 and {num_speakers - 1}, got `{quoted(speaker)}`.")
    return number


def embedded(speaker: Speaker, width: int) -> Tensor:
    """Return the speaker's embedding, ``[1, width]``; zeros by default."""
    if speaker is None:
        return torch.zeros(1, width)
    if not isinstance(speaker, tuple) or len(speaker) != width:
        raise SpeakerError(f"The speaker must be an embedding of {width} numbers.")
    embedding = torch.tensor([speaker], dtype=torch.float32)
    if not embedding.isfinite().all():
        raise SpeakerError("The speaker's embedding must have finite numbers only.")
    return embedding


def quoted(speaker: Speaker) -> str:
    return str(speaker)[:MAX_QUOTED]


def stretched(samples: Samples, speed: float) -> Samples:
    """Return the sound at another speed with the same pitch: FFmpeg's filter atempo, from 0.5 to 2 each time."""
    if speed == 1.0 or not len(samples):
        return samples
    import av
    from av.filter import Graph

    graph, rate = Graph(), 24_000  # the rate only matters to the filter's windows
    nodes = [graph.add_abuffer(sample_rate=rate, format="flt", layout="mono")]
    while not 0.5 <= speed <= 2.0:
        step = 2.0 if speed > 1.0 else 0.5
        nodes.append(graph.add("atempo", str(step)))
        speed /= step
    nodes += [graph.add("atempo", f"{speed:.6f}"), graph.add("abuffersink")]
    graph.link_nodes(*nodes).configure()
    frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
    frame.sample_rate = rate
    graph.push(frame)
    graph.push(None)
    found = []
    while True:
        try:
            found.append(graph.pull().to_ndarray().reshape(-1))
        except (av.BlockingIOError, av.EOFError):
            break
    return np.concatenate(found) if found else samples


def _as_samples(waveform: Any) -> Samples:
    samples: Samples = waveform.float().cpu().numpy().reshape(-1)
    return samples
