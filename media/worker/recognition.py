"""Speech recognition with other classes than Whisper: CTC (Parakeet, Wav2Vec2, ...), Parakeet TDT, Moonshine.

They have no timestamps of segments of their own: long audio is cut at quiet places, and each piece is a segment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from media.decoder.process import RATE, Audio
from media.messages import ModelFacts, Segment, TokenLogprob, Transcribe
from media.worker.loading import WORD_START, UnsupportedModelError, load_pretrained, model_facts
from media.worker.whisper import compression_ratio

MAX_PIECE_S, MIN_PIECE_S = 30.0, 20.0  # a piece ends at the quietest place between them
WINDOW_S = 0.1  # of which the loudness is compared
CTC_ENDING = "ForCTC"
OTHER_CLASSES = ("ParakeetForTDT", "ParakeetForRNNT", "MoonshineForConditionalGeneration")
MIN_SAMPLES = RATE // 10  # convolutions need some
TOKENS_PER_S = 6.5  # at most, as Moonshine's authors limit it


@dataclass(frozen=True, slots=True)
class Recognized:
    """The text of a piece of audio, and its tokens without special ones."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


class Recognizer:
    """A model that writes the text of a piece of audio."""

    def __init__(self, path: Path, architecture: str, dtype: str, device: str) -> None:
        import transformers

        self.model: Any = load_pretrained(class_of(architecture), path, dtype, device)
        self.processor: Any = transformers.AutoProcessor.from_pretrained(path, local_files_only=True)
        self._tokenizer: Any = self.processor.tokenizer
        self._is_ctc = architecture.endswith(CTC_ENDING)
        config = self.model.config
        blank = getattr(config, "blank_token_id", None)
        self._special = {*self._tokenizer.all_special_ids, config.pad_token_id, blank}
        self._num_tokens = int(config.vocab_size)
        self._is_transducer = blank is not None

    @property
    def facts(self) -> ModelFacts:
        return model_facts(self.model)

    def transcribe(self, audio: Audio, request: Transcribe, check: Callable[[], None]) -> Iterator[Segment | str]:
        """Yield the language, which is not known, then the segments. ``check`` is called at each step; it may raise."""
        yield request.language or ""
        number = 0
        for start, stop in pieces(audio):
            check()
            found = self._recognize(audio.read(start, stop), check)
            if not found.text.strip():
                continue
            yield Segment(
                task=request.task,
                id=number,
                seek=start * 100 // RATE,
                start=round(start / RATE, 2),
                end=round(stop / RATE, 2),
                text=found.text if number == 0 else " " + found.text.lstrip(),
                tokens=found.tokens,
                temperature=0.0,
                avg_logprob=sum(found.logprobs) / max(1, len(found.logprobs)),
                compression_ratio=compression_ratio(found.text),
                no_speech_prob=0.0,
                logprobs=self._token_logprobs(found) if request.with_logprobs else (),
            )
            number += 1

    def _recognize(self, samples: npt.NDArray[np.float32], check: Callable[[], None]) -> Recognized:
        samples = np.pad(samples, (0, max(0, MIN_SAMPLES - len(samples))))
        inputs = self.processor(samples, sampling_rate=RATE, return_tensors="pt").to(
            self.model.device, self.model.dtype
        )
        with torch.inference_mode():
            return self._read_path(inputs) if self._is_ctc else self._generate(inputs, len(samples) / RATE, check)

    def _read_path(self, inputs: Any) -> Recognized:
        """Take the best token of each frame, as CTC models are decoded."""
        logprobs, path = self.model(**inputs).logits[0].float().log_softmax(-1).max(-1)
        kept = [place for place, token in collapsed(path.tolist()) if token not in self._special]
        text = str(self.processor.batch_decode(path[None])[0])
        return Recognized(text, tuple(path[kept].tolist()), tuple(logprobs[kept].tolist()))

    def _generate(self, inputs: Any, seconds: float, check: Callable[[], None]) -> Recognized:
        """Decode greedily, token by token."""
        steps = _Steps(self._num_tokens, check)
        # A transducer ends with its audio. A decoder of text can repeat itself without end.
        limits = {} if self._is_transducer else {"max_new_tokens": self._max_new_tokens(seconds)}
        output = self.model.generate(
            **inputs, **limits, do_sample=False, num_beams=1, return_dict_in_generate=True, logits_processor=[steps]
        )
        made = output.sequences[0, -len(steps.logprobs) :].tolist()
        kept = [place for place, token in enumerate(made) if token not in self._special]
        text = str(self.processor.batch_decode(output.sequences, skip_special_tokens=True)[0])
        return Recognized(text, tuple(made[place] for place in kept), tuple(steps.logprobs[place] for place in kept))

    def _max_new_tokens(self, seconds: float) -> int:
        return max(1, min(math.ceil(TOKENS_PER_S * seconds), int(self.model.config.max_position_embeddings) - 1))

    def _token_logprobs(self, found: Recognized) -> tuple[TokenLogprob, ...]:
        texts = map(self._token_text, found.tokens)
        pairs = zip(texts, found.logprobs, strict=True)
        return tuple(TokenLogprob(text, logprob, tuple(text.encode())) for text, logprob in pairs)

    def _token_text(self, token: int) -> str:
        """Return the text of a token with the space that starts a word, which decoding one token alone drops."""
        name = self._tokenizer.convert_ids_to_tokens(token)
        if name == getattr(self._tokenizer, "word_delimiter_token", None):
            return " "
        text = str(self._tokenizer.decode([token]))
        return f" {text}" if name.startswith(WORD_START) and not text.startswith(" ") else text


class _Steps:
    """A processor of logits that is called for each token: it checks for cancellation and keeps log-probabilities.

    Transducers append logits of durations to those of tokens; only tokens can be chosen.
    """

    def __init__(self, num_tokens: int, check: Callable[[], None]) -> None:
        self._num_tokens = num_tokens
        self._check = check
        self.logprobs: list[float] = []

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self._check()
        scores[:, self._num_tokens :] = -torch.inf
        self.logprobs.append(float(scores[0].float().log_softmax(-1).max()))
        return scores


def class_of(architecture: str) -> Any:
    """Return the class of transformers. Raise UnsupportedModelError for others than this module runs."""
    import transformers

    if not architecture.endswith((CTC_ENDING, *OTHER_CLASSES)):
        raise UnsupportedModelError(f"The architecture {architecture} is not supported for transcriptions.")
    kind = getattr(transformers, architecture, None)
    if kind is None:
        raise UnsupportedModelError(f"This version of transformers has no {architecture}.")
    return kind


def pieces(audio: Audio) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each piece, in samples."""
    start, longest, shortest = 0, int(MAX_PIECE_S * RATE), int(MIN_PIECE_S * RATE)
    while audio.num_samples - start > longest:
        stop = start + shortest + quietest(audio.read(start + shortest, start + longest))
        yield start, stop
        start = stop
    if start < audio.num_samples:
        yield start, audio.num_samples


def quietest(samples: npt.NDArray[np.float32]) -> int:
    """Return the middle of the quietest tenth of a second."""
    size = int(WINDOW_S * RATE)
    windows = samples[: len(samples) // size * size].reshape(-1, size)
    return int((windows**2).mean(axis=1).argmin()) * size + size // 2


def collapsed(path: list[int]) -> list[tuple[int, int]]:
    """Return places and tokens of a CTC path without repetitions."""
    return [(place, token) for place, token in enumerate(path) if place == 0 or path[place - 1] != token]
