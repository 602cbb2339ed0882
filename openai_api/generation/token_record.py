"""Per-token data of a request for its log row: log-probabilities and captured features.

Bounded while it grows. Text is produced only when the row is written, on the log's thread.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from inference.captures import ActivationCapture, CaptureSpec, FeatureValues, Projections, Residuals
from inference.client import CaptureEvent, Event, GenerationRequest, TokenLogprob, TokensEvent
from inference.text.model_text import ModelText
from openai_api.generation.token_text import finite

MAX_SIZE = 128 * 1024  # approximate characters of JSON for one generation
_TOKEN, _NUMBER = 48, 18  # of a token, and of a pair with a number


@dataclass(slots=True)
class _Sequence:
    """``features`` are indexed by position from the prompt's first token. ``num_tokens`` may exceed what is kept."""

    prompt: Sequence[int]
    own: tuple[CaptureSpec, ...]
    has_logprobs: bool
    num_tokens: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    features: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    def id_at(self, place: int) -> int:
        start = len(self.prompt)
        return self.prompt[place] if place < start else self.ids[place - start]


class TokenRecord:
    """Collect a generation's events. ``sae`` is the name of the SAE."""

    def __init__(self, text: ModelText, sequences: dict[int, _Sequence], sae: str, max_size: int) -> None:
        self._text = text
        self._sequences = sequences
        self._sae = sae
        self._max_size = max_size
        self._is_full = False
        self.size = 0

    @classmethod
    def of(
        cls,
        requests: Sequence[GenerationRequest],
        own_reads: Callable[[int], tuple[CaptureSpec, ...]],
        *,
        text: ModelText,
        sae: str,
        max_size: int = MAX_SIZE,
    ) -> TokenRecord | None:
        """Return a record, or None where no per-token data was requested. ``own_reads`` excludes watch rules."""
        sequences = {
            request.index: _Sequence(
                request.prompt_token_ids, _of_features(own_reads(request.index)), request.sampling.logprobs is not None
            )
            for request in requests
        }
        asked = any(one.has_logprobs or one.own for one in sequences.values())
        return cls(text, sequences, sae, max_size) if asked else None

    def note(self, event: Event) -> None:
        if isinstance(event, TokensEvent):
            self._note_tokens(self._sequences[event.index], event)
        elif isinstance(event, CaptureEvent):
            sequence = self._sequences[event.index]
            for reading in event.captures:
                if reading.number < len(sequence.own) and reading.places is not None:
                    self._note_reading(sequence, reading, reading.places)

    def body(self) -> dict[str, Any]:
        """Return the record as stored in the log."""
        return {"sae": self._sae, "answers": [self._answer(*pair) for pair in sorted(self._sequences.items())]}

    def _note_tokens(self, sequence: _Sequence, event: TokensEvent) -> None:
        sequence.num_tokens += len(event.token_ids)
        for token_id, logprob in zip(event.token_ids, event.logprobs or repeat(None), strict=False):
            if not self._has_room(_TOKEN + _NUMBER * len(logprob.top if logprob else ())):
                return
            sequence.ids.append(token_id)
            sequence.logprobs.append(logprob)

    def _note_reading(self, sequence: _Sequence, reading: ActivationCapture, places: tuple[int, ...]) -> None:
        for row, place in enumerate(places):
            found = list(_activations(sequence.own[reading.number], reading, row))
            is_prompt = place < len(sequence.prompt)
            if not self._has_room(_NUMBER * len(found) + (_TOKEN if is_prompt else 0)):
                return
            sequence.features.setdefault(place, []).extend(found)

    def _has_room(self, size: int) -> bool:
        """Reserve space for a record. Once full it stays full, so that there are no gaps."""
        self._is_full = self._is_full or self.size + size > self._max_size
        if not self._is_full:
            self.size += size
        return not self._is_full

    def _answer(self, index: int, sequence: _Sequence) -> dict[str, Any]:
        start = len(sequence.prompt)
        return {
            "index": index,
            "num_tokens": sequence.num_tokens,
            "prompt": [token for run in _runs(sequence) for token in self._tokens(run, repeat(None), sequence)],
            "tokens": self._tokens(range(start, start + len(sequence.ids)), sequence.logprobs, sequence),
        }

    def _tokens(
        self, places: range, logprobs: Iterable[TokenLogprob | None], sequence: _Sequence
    ) -> list[dict[str, Any]]:
        """Return the tokens. A character made of several tokens belongs to the last one."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        tokens = []
        for place, logprob in zip(places, logprobs, strict=False):
            token_id = sequence.id_at(place)
            text = decoder.decode(self._text.token_bytes(token_id))
            head = {"place": place, "id": token_id, "text": text}
            tokens.append(head | self._known(logprob, sequence.features.get(place)))
        return tokens

    def _known(self, logprob: TokenLogprob | None, features: list[tuple[int, float]] | None) -> dict[str, Any]:
        """Drop unknown values."""
        body: dict[str, Any] = {}
        if logprob is not None:
            body["logprob"] = _short(finite(logprob.logprob))
            body["top"] = [[self._text.token_text(other), _short(finite(value))] for other, value in logprob.top]
        if features is not None:
            body["features"] = [[index, _short(value)] for index, value in features]
        return body


def _of_features(specs: tuple[CaptureSpec, ...]) -> tuple[CaptureSpec, ...]:
    """Return the captures of features, which come first. Residuals are not stored: they are large, and nobody reads
    them. Directions are not stored either.
    """
    return tuple(spec for spec in specs if not isinstance(spec.probe, Residuals | Projections))


def _runs(sequence: _Sequence) -> list[range]:
    """Return runs of consecutive captured prompt positions, so that a long prompt is not stored for one of them."""
    runs: list[range] = []
    for place in sorted(place for place in sequence.features if place < len(sequence.prompt)):
        if runs and runs[-1].stop == place:
            runs[-1] = range(runs[-1].start, place + 1)
        else:
            runs.append(range(place, place + 1))
    return runs


def _activations(read: CaptureSpec, reading: ActivationCapture, row: int) -> list[tuple[int, float]]:
    """Return the requested features, or of the strongest those that are active."""
    values = reading.values[row].tolist()
    if reading.features is None:
        assert isinstance(read.probe, FeatureValues), "only chosen features have no indices"
        return list(zip(read.probe.features, values, strict=True))
    return [pair for pair in zip(reading.features[row].tolist(), values, strict=True) if pair[1] > 0]


def _short(value: float) -> float:
    """Round to five digits; more would only fill the log."""
    return float(f"{value:.5g}")
