"""Speech recognition with other classes than Whisper: CTC (Parakeet, Wav2Vec2, ...), Parakeet TDT, Moonshine.

They have no timestamps of segments of their own: long audio is cut at quiet places, and each piece is a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from media.decoder.process import RATE, Audio
from media.messages import ModelFacts, Segment, TokenLogprob, Transcribe
from media.worker.loading import load_pretrained, model_facts

MAX_PIECE_S, MIN_PIECE_S = 30.0, 20.0  # a piece ends at the quietest place between them
WINDOW_S = 0.1  # of which the loudness is compared
CTC_ENDING = "ForCTC"


class Recognizer:
    """A model that writes the text of a piece of audio."""

    def __init__(self, path: Path, architecture: str, dtype: str, device: str) -> None:
        import transformers

        self._model: Any = load_pretrained(getattr(transformers, architecture), path, dtype, device)
        self._processor: Any = transformers.AutoProcessor.from_pretrained(path)
        self._is_ctc = architecture.endswith(CTC_ENDING)

    @property
    def facts(self) -> ModelFacts:
        return model_facts(self._model)

    def transcribe(self, audio: Audio, request: Transcribe, check: Callable[[], None]) -> Iterator[Segment | str]:
        """Yield the language, which is not known, then the segments. ``check`` is called before each; it may raise."""
        yield request.language or ""
        for number, (start, stop) in enumerate(pieces(audio)):
            check()
            tokens, logprobs, text = self._recognize(audio.read(start, stop))
            if not text.strip():
                continue
            yield Segment(
                task=request.task,
                id=number,
                seek=start * 100 // RATE,
                start=round(start / RATE, 2),
                end=round(stop / RATE, 2),
                text=text if number == 0 else " " + text.lstrip(),
                tokens=tuple(tokens),
                temperature=0.0,
                avg_logprob=sum(logprobs) / len(logprobs) if logprobs else 0.0,
                compression_ratio=1.0,
                no_speech_prob=0.0,
                logprobs=self._token_logprobs(tokens, logprobs) if request.with_logprobs else (),
            )

    def _recognize(self, samples: npt.NDArray[np.float32]) -> tuple[list[int], list[float], str]:
        """Return token ids, their log-probabilities, and the text of a piece."""
        inputs = self._processor(samples, sampling_rate=RATE, return_tensors="pt").to(
            self._model.device, self._model.dtype
        )
        with torch.inference_mode():
            if self._is_ctc:
                logprobs = self._model(**inputs).logits[0].float().log_softmax(-1)
                best, places = logprobs.max(-1)
                kept = _collapsed(places.tolist(), int(self._model.config.pad_token_id))
                text = str(self._processor.batch_decode(places[None])[0])
                return [token for _, token in kept], [float(best[place]) for place, _ in kept], text
            output = self._model.generate(**inputs, return_dict_in_generate=True, output_scores=True)
        sequence = output.sequences[0]
        text = str(self._processor.batch_decode(output.sequences, skip_special_tokens=True)[0])
        scores = getattr(output, "scores", None) or ()
        made = sequence[len(sequence) - len(scores) :]
        logprobs = [float(score[0].float().log_softmax(-1)[token]) for score, token in zip(scores, made, strict=True)]
        return sequence.tolist(), logprobs, text

    def _token_logprobs(self, tokens: list[int], logprobs: list[float]) -> tuple[TokenLogprob, ...]:
        tokenizer = getattr(self._processor, "tokenizer", self._processor)
        found = []
        for token, logprob in zip(tokens[-len(logprobs) :], logprobs, strict=True):
            text = str(tokenizer.decode([token]))
            found.append(TokenLogprob(text, logprob, tuple(text.encode())))
        return tuple(found)


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


def _collapsed(tokens: list[int], blank: int) -> list[tuple[int, int]]:
    """Return places and tokens of a CTC path without repetitions and blanks."""
    return [
        (place, token)
        for place, token in enumerate(tokens)
        if token != blank and (place == 0 or tokens[place - 1] != token)
    ]
