"""Whisper on audio of any length in constant memory: windows of 30 s, timestamps, fallback to higher temperatures.

Follows the long-form decoding of the Whisper paper (Radford et al. 2022, section 4.5) as transformers implements it,
with the same segments (tests/media/test_whisper.py). transformers needs the features of the whole file at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from core.errors import MillmError
from media.decoder.process import RATE, Audio
from media.messages import ModelFacts, Segment, TokenLogprob, Transcribe, Word
from media.worker.alignment import Aligner, words_of
from media.worker.loading import load_pretrained, model_facts

HOP = 160  # samples per frame: frames of 10 ms
MARGIN = 2  # frames beside a window, whose spectra lack samples beyond them
TIME_STEP = 0.02  # seconds per timestamp token
FRAMES_PER_STEP = 2
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MAX_COMPRESSION_RATIO = 2.4  # of the text's bytes, as OpenAI's implementation has it
MIN_LOGPROB = -1.0
NO_SPEECH = 0.6
MAX_PROMPT_TOKENS = 224
LOUDNESS_RANGE = 8.0  # log10 units below the maximum that features keep


class UnsupportedWordsError(MillmError):
    """The model has no heads whose attention tells when a word is spoken."""

    code = "unsupported_parameter"
    param = "timestamp_granularities"


class Features:
    """Log-mel features of an audio file, computed a window at a time, with the maximum of the whole file."""

    def __init__(self, audio: Audio, extractor: Any, check: Callable[[], None]) -> None:
        self._audio = audio
        self._extractor = extractor
        self.window = int(extractor.nb_max_frames)
        self.num_frames = -(-audio.num_samples // HOP)
        self._short: Tensor | None = None
        if audio.num_samples <= extractor.n_samples:
            samples = audio.read(0, audio.num_samples)
            self._short = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features[0]
        else:
            self.num_frames = audio.num_samples // HOP
            self._maximum = self._find_maximum(check)

    def read(self, start: int) -> Tensor:
        """Return the window from a frame on, ``[1, mels, window]`` float32."""
        stop = min(start + self.window, self.num_frames)
        features = self._short[:, start:stop] if self._short is not None else self._long(start, stop)
        return torch.nn.functional.pad(features, (0, self.window - (stop - start)))[None]

    def _long(self, start: int, stop: int) -> Tensor:
        return (torch.clamp(self._raw(start, stop), min=self._maximum - LOUDNESS_RANGE) + 4.0) / 4.0

    def _find_maximum(self, check: Callable[[], None]) -> float:
        found = []
        for start in range(0, self.num_frames, self.window):
            check()
            found.append(float(self._raw(start, min(start + self.window, self.num_frames)).max()))
        return max(found)

    def _raw(self, start: int, stop: int) -> Tensor:
        """Return the logarithms before they are scaled, ``[mels, stop - start]``.

        Values far below the maximum of these frames are clamped; they would be clamped by the file's maximum too.
        """
        first, last = max(0, start - MARGIN), stop + MARGIN
        samples = self._audio.read(first * HOP, self._audio.num_samples if stop == self.num_frames else last * HOP)
        options = {"truncation": False, "padding": "do_not_pad", "sampling_rate": RATE, "return_tensors": "pt"}
        features: Tensor = self._extractor(samples, **options).input_features[0]
        return features[:, start - first : stop - first] * 4.0 - 4.0


@dataclass(frozen=True, slots=True)
class Decoded:
    """The tokens of one window, without the start and the end, and how sure the model is of them."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    temperature: float

    @property
    def needs_fallback(self) -> bool:
        is_silent = self.no_speech_prob > NO_SPEECH and self.avg_logprob < MIN_LOGPROB
        is_poor = self.compression_ratio > MAX_COMPRESSION_RATIO or self.avg_logprob < MIN_LOGPROB
        return is_poor and not is_silent

    @property
    def is_silence(self) -> bool:
        return self.no_speech_prob > NO_SPEECH and self.avg_logprob < MIN_LOGPROB


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens ``start`` to ``stop`` of a window, from ``begin`` to ``end`` in steps of 20 ms from the window's start."""

    start: int
    stop: int
    begin: int
    end: int


class Whisper:
    """A Whisper model for transcription, and for translation into English if it is multilingual."""

    def __init__(self, path: Path, dtype: str, device: str) -> None:
        from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

        self.model: Any = load_pretrained(WhisperForConditionalGeneration, path, dtype, device)
        self.extractor = WhisperFeatureExtractor.from_pretrained(path)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        config = self.model.generation_config
        self._config = config
        self._languages: dict[str, int] = {
            token.strip("<|>"): int(number) for token, number in (getattr(config, "lang_to_id", None) or {}).items()
        }
        self._tasks: dict[str, int] = getattr(config, "task_to_id", None) or {}
        self._start = int(self.model.config.decoder_start_token_id)
        self._no_timestamps = int(config.no_timestamps_token_id)
        self._first_timestamp = self._no_timestamps + 1
        self._no_speech = self._no_timestamps - 1  # <|nospeech|> or <|nocaptions|>
        self._previous = int(
            getattr(config, "prev_sot_token_id", 0) or self.tokenizer.convert_tokens_to_ids("<|startofprev|>")
        )
        self._end = int(self.tokenizer.eos_token_id)
        heads = getattr(config, "alignment_heads", None)
        self._aligner = Aligner(self.model, heads) if heads else None

    @property
    def facts(self) -> ModelFacts:
        abilities = {"segments"} | ({"translate"} if "translate" in self._tasks else set())
        if self._aligner is not None:
            abilities.add("words")
        return model_facts(self.model, languages=tuple(sorted(self._languages)), abilities=frozenset(abilities))

    def transcribe(self, audio: Audio, request: Transcribe, check: Callable[[], None]) -> Iterator[Segment | str]:
        """Yield the language, then the segments. ``check`` is called for each token; it may raise to stop."""
        features = Features(audio, self.extractor, check)
        prompt = self._prompt_ids(request.prompt)
        language: str | None = request.language
        seek, number = 0, 0
        first = True
        while seek < features.num_frames:
            check()
            encoded = self._encode(features.read(seek))
            silence, detected = self._probe(encoded)
            if first:
                first, language = False, language or detected
                yield language or "en"
            ids = [*prompt, *self._initial_ids(language, request)]
            decoded = self._decode_window(encoded, ids, silence, request, check)
            num_frames = min(features.window, features.num_frames - seek)
            if decoded.is_silence:
                seek += num_frames
                continue
            slices, advance = slices_of(decoded.tokens, self._first_timestamp, num_frames)
            steps = self._align(encoded, ids, decoded, num_frames) if request.with_words else []
            spoken = "en" if request.translate else language
            for place in slices:
                segment = self._segment(number, seek, place, decoded, request)
                yield replace(segment, words=self._words(seek, place, decoded, steps, spoken)) if steps else segment
                number += 1
            seek += advance

    def _encode(self, features: Tensor) -> Any:
        parameter = next(self.model.parameters())
        with torch.inference_mode():
            return self.model.get_encoder()(features.to(parameter.device, parameter.dtype))

    def _probe(self, encoded: Any) -> tuple[float, str | None]:
        """Return the probability of silence and the most likely language, from the logits after the first token."""
        ids = torch.tensor([[self._start]], device=self.model.device)
        with torch.inference_mode():
            logits = self.model(encoder_outputs=encoded, decoder_input_ids=ids).logits[0, -1].float()
        silence = float(logits.softmax(-1)[self._no_speech])
        if not self._languages:
            return silence, None
        return silence, max(self._languages, key=lambda name: float(logits[self._languages[name]]))

    def _initial_ids(self, language: str | None, request: Transcribe) -> list[int]:
        if not self._languages or language is None:
            return [self._start]
        return [self._start, self._languages[language], self._tasks["translate" if request.translate else "transcribe"]]

    def _prompt_ids(self, prompt: str) -> list[int]:
        """Return the last 224 tokens of the prompt behind the token for previous text."""
        if not prompt.strip():
            return []
        ids = self.tokenizer.encode(" " + prompt.strip(), add_special_tokens=False)
        return [self._previous, *[number for number in ids if number < self._end][-MAX_PROMPT_TOKENS:]]

    def _decode_window(
        self, encoded: Any, ids: list[int], silence: float, request: Transcribe, check: Callable[[], None]
    ) -> Decoded:
        """Decode with the given temperature, or with rising ones until the result is plausible."""
        given = request.temperature
        temperatures: Sequence[float] = TEMPERATURES if not given else (given,)
        for temperature in temperatures:
            decoded = self._decode(encoded, ids, silence, temperature, check)
            if not decoded.needs_fallback:
                break
        return decoded

    def _decode(
        self, encoded: Any, ids: list[int], silence: float, temperature: float, check: Callable[[], None]
    ) -> Decoded:
        from transformers.generation import GenerationMixin

        start = torch.tensor([ids], device=self.model.device)
        room = int(self.model.config.max_target_positions) - len(ids)
        config = self._generation_config(temperature, room)
        with torch.inference_mode():
            output: Any = GenerationMixin.generate(
                self.model,
                encoder_outputs=encoded,
                decoder_input_ids=start,
                generation_config=config,
                logits_processor=self._processors(len(ids), check),
            )
        made = output.sequences[0, len(ids) :]
        scores = torch.stack(output.scores)[: len(made), 0].float() * (temperature or 1.0)
        logprobs = scores.log_softmax(-1).gather(-1, made[:, None])[:, 0].tolist()
        tokens = [token for token in made.tolist() if token != self._end]
        return Decoded(
            tokens=tuple(tokens),
            logprobs=tuple(logprobs),
            avg_logprob=sum(logprobs) / max(1, len(logprobs)),  # the end counts, as in the paper
            compression_ratio=compression_ratio(self._text(tokens)),
            no_speech_prob=silence,
            temperature=temperature,
        )

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode([token for token in tokens if token < self._end]))

    def _generation_config(self, temperature: float, max_new_tokens: int) -> Any:
        from transformers import GenerationConfig

        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        return GenerationConfig(
            max_new_tokens=max_new_tokens,
            max_length=None,
            eos_token_id=self._end,
            pad_token_id=self._config.pad_token_id,
            decoder_start_token_id=self._start,
            return_dict_in_generate=True,
            output_scores=True,
            **sampling,
        )

    def _processors(self, num_initial: int, check: Callable[[], None]) -> Any:
        from transformers import LogitsProcessorList
        from transformers.generation.logits_process import (
            SuppressTokensAtBeginLogitsProcessor,
            SuppressTokensLogitsProcessor,
            WhisperTimeStampLogitsProcessor,
        )

        device, config = str(self.model.device), self._config
        found: list[Any] = [partial(_checked, check)]
        if config.begin_suppress_tokens:
            found.append(SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, num_initial, device=device))
        if config.suppress_tokens:
            found.append(SuppressTokensLogitsProcessor(config.suppress_tokens, device=device))
        # Last: it compares the probabilities of text and of timestamps.
        found.append(WhisperTimeStampLogitsProcessor(config, begin_index=num_initial))
        return LogitsProcessorList(found)

    def _segment(self, number: int, seek: int, place: Slice, decoded: Decoded, request: Transcribe) -> Segment:
        tokens = decoded.tokens[place.start : place.stop]
        offset = seek * HOP / RATE
        spoken = [index for index in range(place.start, place.stop) if decoded.tokens[index] < self._end]
        return Segment(
            task=request.task,
            id=number,
            seek=seek,
            start=round(offset + place.begin * TIME_STEP, 2),
            end=round(offset + place.end * TIME_STEP, 2),
            text=self._text(tokens),
            tokens=tokens,
            temperature=decoded.temperature,
            avg_logprob=decoded.avg_logprob,
            compression_ratio=decoded.compression_ratio,
            no_speech_prob=decoded.no_speech_prob,
            logprobs=self._token_logprobs(decoded, spoken) if request.with_logprobs else (),
        )

    def _align(self, encoded: Any, ids: list[int], decoded: Decoded, num_frames: int) -> list[int]:
        """Return the step of 20 ms at which each token ends.

        The last token that was chosen was not read by the decoder: it has the step of the one before.
        """
        if self._aligner is None:
            raise UnsupportedWordsError("This model has no timestamps of words.")
        read = decoded.tokens[: len(decoded.logprobs) - 1]
        steps = self._aligner.steps(encoded.last_hidden_state, ids, read, num_frames)
        return [*steps, *(steps[-1:] or [0]) * (len(decoded.tokens) - len(steps))]

    def _words(
        self, seek: int, place: Slice, decoded: Decoded, steps: Sequence[int], language: str | None
    ) -> tuple[Word, ...]:
        """Return the words of a segment. A word starts where the token before it ends."""
        spoken = [index for index in range(place.start, place.stop) if decoded.tokens[index] < self._end]
        ends = [seek * HOP / RATE + step * TIME_STEP for step in steps]
        found = []
        for text, first, stop in words_of(self.tokenizer, [decoded.tokens[index] for index in spoken], language):
            start = ends[spoken[first] - 1] if spoken[first] else seek * HOP / RATE
            found.append(Word(text.strip(), round(start, 2), round(ends[spoken[stop - 1]], 2)))
        return tuple(word for word in found if word.word)

    def _token_logprobs(self, decoded: Decoded, places: Sequence[int]) -> tuple[TokenLogprob, ...]:
        found = []
        for index in places:
            text = self.tokenizer.decode([decoded.tokens[index]])
            found.append(TokenLogprob(text, decoded.logprobs[index], tuple(text.encode())))
        return tuple(found)


def _checked(check: Callable[[], None], ids: Tensor, scores: Tensor) -> Tensor:
    """Call ``check`` for each token, as a processor of logits that changes nothing."""
    check()
    return scores


def compression_ratio(text: str) -> float:
    """Return how well a text compresses with zlib: repetition has a high ratio."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def slices_of(tokens: Sequence[int], first_timestamp: int, num_frames: int) -> tuple[list[Slice], int]:
    """Split the tokens of a window at pairs of timestamps. Return the segments, and by how many frames to advance.

    Text after the last pair is dropped, because its end may lie in the next window; the next window starts there.
    """
    stamps = [token >= first_timestamp for token in tokens]
    ends_alone = stamps[-2:] == [False, True]
    places = [index + 1 for index in range(len(stamps) - 1) if stamps[index] and stamps[index + 1]]
    if not places:
        given = [token - first_timestamp for token in tokens if token > first_timestamp]
        end = given[-1] if given else num_frames // FRAMES_PER_STEP
        return [Slice(0, len(tokens), 0, end)], num_frames
    if ends_alone:
        places.append(len(tokens))
    else:
        places[-1] += 1  # with the timestamp at which the next window starts
    slices, start = [], 0
    for index, stop in enumerate(places):
        last = stop - 1 if index < len(places) - 1 or ends_alone else stop - 2
        slices.append(Slice(start, stop, tokens[start] - first_timestamp, tokens[last] - first_timestamp))
        start = stop
    if ends_alone:
        return slices, num_frames
    advance = (tokens[start - 2] - first_timestamp) * FRAMES_PER_STEP
    return slices, min(advance, num_frames) or num_frames  # a window that claims to end where it starts is skipped
