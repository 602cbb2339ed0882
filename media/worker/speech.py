"""Text to speech with the classes of transformers: VITS and MMS, SpeechT5, Bark, FastSpeech2Conformer.

Text is split into sentences, and each is spoken by itself, so that the first is sent before the last is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from core.errors import MillmError
from media.messages import ModelFacts, Speak
from media.sentences import sentences
from media.worker.loading import load_pretrained, model_facts

Samples = npt.NDArray[np.float32]
Speaker = int | str | tuple[float, ...] | None
PAUSE_S = 0.15  # between sentences


class SpeakerError(MillmError):
    """The model does not have the speaker."""

    code = "invalid_value"
    param = "voice"


class Voice(Protocol):
    """A loaded model of one class."""

    sample_rate: int
    facts: ModelFacts

    def speak(self, text: str, speaker: Speaker, speed: float) -> Samples:
        """Return the samples of a sentence, from -1 to 1. Raise SpeakerError."""


def speak(voice: Voice, request: Speak, check: Callable[[], None]) -> Iterator[Samples]:
    """Yield the samples of each sentence, with pauses between them. ``check`` is called before each; it may raise."""
    pause = np.zeros(int(PAUSE_S * voice.sample_rate), dtype=np.float32)
    for number, sentence in enumerate(sentences(request.text)):
        check()
        if request.seed is not None:
            torch.manual_seed(request.seed + number)
        samples = voice.speak(sentence, request.speaker, request.speed)
        samples = np.nan_to_num(samples, nan=0.0, posinf=1.0, neginf=-1.0)
        yield samples if number == 0 else np.concatenate([pause, samples])


class Vits:
    """VITS and MMS. Speakers are numbers."""

    def __init__(self, path: Path, dtype: str, device: str) -> None:
        from transformers import AutoTokenizer, VitsModel

        self._model: Any = load_pretrained(VitsModel, path, dtype, device)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        config = self._model.config
        self.sample_rate = int(config.sampling_rate)
        self._num_speakers = int(config.num_speakers)
        names = tuple(map(str, range(self._num_speakers))) if self._num_speakers > 1 else ()
        self.facts = model_facts(
            self._model, sample_rate=self.sample_rate, speakers=names, abilities=frozenset({"speed"})
        )

    def speak(self, text: str, speaker: Speaker, speed: float) -> Samples:
        inputs = self._tokenizer(text=text, return_tensors="pt").to(self._model.device)
        if inputs["input_ids"].shape[-1] == 0:  # nothing that the tokenizer knows
            return np.zeros(0, dtype=np.float32)
        rate = float(self._model.config.speaking_rate) * speed
        chosen = numbered(speaker, self._num_speakers) if self._num_speakers > 1 else None
        with torch.inference_mode():
            output = self._model(**inputs, speaker_id=chosen, speaking_rate=rate)
        return _as_samples(output.waveform[0])


class SpeechT5:
    """SpeechT5 with its vocoder, which lies in the folder ``vocoder`` of the model. Speakers are embeddings."""

    def __init__(self, path: Path, dtype: str, device: str) -> None:
        from transformers import SpeechT5ForTextToSpeech, SpeechT5HifiGan, SpeechT5Tokenizer

        self._model: Any = load_pretrained(SpeechT5ForTextToSpeech, path, dtype, device)
        self._vocoder: Any = load_pretrained(SpeechT5HifiGan, path / "vocoder", dtype, device)
        self._tokenizer: Any = SpeechT5Tokenizer.from_pretrained(path)
        self.sample_rate = int(self._vocoder.config.sampling_rate)
        self.facts = model_facts(self._model, sample_rate=self.sample_rate)

    def speak(self, text: str, speaker: Speaker, speed: float) -> Samples:
        ids = self._tokenizer(text=text, return_tensors="pt").input_ids.to(self._model.device)
        width = int(self._model.config.speaker_embedding_dim)
        embedding = torch.tensor([embedded(speaker, width)], device=self._model.device, dtype=self._model.dtype)
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
        self._presets = tuple(
            sorted(name for name in (self._processor.speaker_embeddings or {}) if "/" in name or "_" in name)
        )
        self.facts = model_facts(self._model, sample_rate=self.sample_rate, speakers=self._presets)

    def speak(self, text: str, speaker: Speaker, speed: float) -> Samples:
        preset = None
        if speaker is not None:
            if speaker not in self._presets:
                raise SpeakerError(f"The model has no speaker `{speaker}`.")
            preset = speaker
        inputs = self._processor(text, voice_preset=preset).to(self._model.device)
        with torch.inference_mode():
            samples = self._model.generate(**inputs)[0]
        return stretched(_as_samples(samples), speed)


class FastSpeech2:
    """FastSpeech2Conformer with its HiFi-GAN in one checkpoint. Speakers are numbers."""

    def __init__(self, path: Path, dtype: str, device: str) -> None:
        from transformers import FastSpeech2ConformerTokenizer, FastSpeech2ConformerWithHifiGan

        self._model: Any = load_pretrained(FastSpeech2ConformerWithHifiGan, path, dtype, device)
        self._tokenizer: Any = FastSpeech2ConformerTokenizer.from_pretrained(path)
        self.sample_rate = int(self._model.config.vocoder_config.sampling_rate)
        self._num_speakers = int(self._model.config.model_config.num_speakers or 0)
        self.facts = model_facts(self._model, sample_rate=self.sample_rate)

    def speak(self, text: str, speaker: Speaker, speed: float) -> Samples:
        ids = self._tokenizer(text, return_tensors="pt").input_ids.to(self._model.device)
        more = {}
        if self._num_speakers > 1:
            number = numbered(speaker, self._num_speakers)
            more["speaker_ids"] = torch.tensor([[number]], device=self._model.device)
        with torch.inference_mode():
            samples = self._model(ids, return_dict=True, **more).waveform[0]
        return stretched(_as_samples(samples), speed)


CLASSES: dict[str, Callable[[Path, str, str], Voice]] = {
    "VitsModel": Vits,
    "SpeechT5ForTextToSpeech": SpeechT5,
    "BarkModel": Bark,
    "FastSpeech2ConformerWithHifiGan": FastSpeech2,
}


def numbered(speaker: Speaker, num_speakers: int) -> int:
    """Return the number of a speaker; 0 by default."""
    if speaker is None:
        return 0
    try:
        number = int(speaker)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < num_speakers:
        raise SpeakerError(f"The speaker must be between 0 and {num_speakers - 1}, got `{speaker}`.")
    return number


def embedded(speaker: Speaker, width: int) -> tuple[float, ...]:
    """Return the speaker's embedding; zeros by default."""
    if speaker is None:
        return (0.0,) * width
    if not isinstance(speaker, tuple) or len(speaker) != width:
        raise SpeakerError(f"The speaker must be an embedding of {width} numbers.")
    return speaker


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
