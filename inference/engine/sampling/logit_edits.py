"""Edit logits before sampling: bans, biases and penalties.

No tensor of the vocabulary's size is created: a row is edited only at the tokens that its parameters name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inference.engine.messages import SamplingParams
from inference.engine.sampling.token_history import TokenHistory
from inference.engine.sampling.token_masks import TokenMasks
from inference.engine.sampling.transfers import to_device
from inference.engine.sampling.truncation import Rows
from inference.engine.scheduling.sequence import Sequence


class BadWords:
    """The forbidden token sequences of a request. The last token of one is banned after the tokens before it."""

    __slots__ = ("_by_last", "longest", "single")

    def __init__(self, words: Many[Many[int]]) -> None:
        self.longest = max(map(len, words), default=0)  # tokens
        self.single = tuple(dict.fromkeys(word[0] for word in words if len(word) == 1))
        self._by_last: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
        for *before, last in (word for word in words if len(word) > 1):
            self._by_last[before[-1]].append((before, last))

    @property
    def has_longer(self) -> bool:
        return bool(self._by_last)

    def banned_after(self, token_ids: list[int]) -> list[int]:
        """Return the last tokens of those words whose other tokens ``token_ids`` (prompt and generated) end with."""
        words = self._by_last.get(token_ids[-1], ())
        return [last for before, last in words if token_ids[-len(before) :] == before]


@dataclass(frozen=True, slots=True)
class Additions:
    """Values to add to logits. All three tensors are ``[places]``."""

    rows: Tensor
    token_ids: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Place:
    """Where a token is sampled: after all tokens of the sequence and the first ``num_drafts`` of its drafts."""

    sequence: Sequence
    num_drafts: int

    @property
    def drafts(self) -> tuple[int, ...]:
        return self.sequence.drafts[: self.num_drafts]


@dataclass(frozen=True, slots=True)
class Penalties:
    """The penalties of ``rows``. Parameters ``[rows, 3]``: repetition, frequency, presence."""

    places: tuple[Place, ...]
    rows: tuple[int, ...]
    values: Tensor


@dataclass(frozen=True, slots=True)
class Edits:
    """The edits of a batch. Rows are indices among the edited rows."""

    masked: Rows | None = None
    allowed: tuple[tuple[int, Tensor], ...] = ()  # row, its only allowed ids
    additions: Additions | None = None
    penalties: Penalties | None = None
    waiting: tuple[tuple[int, Place], ...] = ()  # rows with min_tokens
    bad_words: tuple[tuple[int, Place, BadWords], ...] = ()  # rows with bad words of several tokens

    @property
    def are_none(self) -> bool:
        has_tensors = self.masked is not None or self.additions is not None or self.penalties is not None
        return not (has_tensors or self.allowed or self.waiting or self.bad_words)


def is_edited(p: SamplingParams) -> bool:
    return bool(p.logit_bias or p.bad_words or p.min_tokens or p.allowed_token_ids is not None or has_penalties(p))


def has_penalties(p: SamplingParams) -> bool:
    return bool(p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0)


def build_edits(sequences: list[Sequence], masked: list[int], device: torch.device) -> Edits:
    """Build the edits. ``masked``: rows with a grammar. Further rows of a sequence are those after its drafts."""
    params = [sequence.request.sampling for sequence in sequences]
    places = _places(sequences)
    bad_words = [(row, BadWords(p.bad_words)) for row, p in enumerate(params) if p.bad_words]
    return Edits(
        masked=to_device(masked, device) if masked else None,
        allowed=tuple(
            (row, to_device(p.allowed_token_ids, device, torch.int64))
            for row, p in enumerate(params)
            if p.allowed_token_ids is not None
        ),
        additions=_additions(params, bad_words, device),
        penalties=_penalties(places, device),
        waiting=tuple((row, place) for row, place in enumerate(places) if params[row].min_tokens),
        bad_words=tuple((row, places[row], words) for row, words in bad_words if words.has_longer),
    )


def edit(logits: Tensor, edits: Edits, masks: TokenMasks | None) -> None:
    """Edit ``[rows, vocab]`` float32 in place."""
    if edits.masked is not None and masks is not None:
        banned = masks.banned(logits.shape[1], logits.device)
        logits[edits.masked] = logits[edits.masked].masked_fill_(banned, -torch.inf)
    for row, ids in edits.allowed:
        kept = logits[row, ids]
        logits[row] = -torch.inf
        logits[row, ids] = kept
    if edits.additions is not None:
        added = edits.additions
        logits.index_put_((added.rows, added.token_ids), added.values, accumulate=True)
    _ban(logits, edits)
    if edits.penalties is not None:
        _penalise(logits, edits.penalties)


def _additions(
    params: list[SamplingParams], bad_words: list[tuple[int, BadWords]], device: torch.device
) -> Additions | None:
    added = [(row, token, value) for row, p in enumerate(params) for token, value in p.logit_bias]
    added += [(row, token, -torch.inf) for row, words in bad_words for token in words.single]
    if not added:
        return None
    rows, ids, values = zip(*added, strict=True)
    return Additions(
        to_device(rows, device),
        to_device(ids, device),
        to_device(values, device, torch.float32),
    )


def _places(sequences: list[Sequence]) -> list[Place]:
    places: list[Place] = []
    for sequence in sequences:
        is_further = bool(places) and places[-1].sequence is sequence
        places.append(Place(sequence, places[-1].num_drafts + 1 if is_further else 0))
    return places


def _penalties(places: list[Place], device: torch.device) -> Penalties | None:
    rows = [row for row, place in enumerate(places) if has_penalties(place.sequence.request.sampling)]
    if not rows:
        return None
    params = [places[row].sequence.request.sampling for row in rows]
    values = [[p.repetition_penalty, p.frequency_penalty, p.presence_penalty] for p in params]
    return Penalties(tuple(places[row] for row in rows), tuple(rows), to_device(values, device, torch.float32))


def _ban(logits: Tensor, edits: Edits) -> None:
    """Ban tokens depending on those so far: end tokens before ``min_tokens``, and the last tokens of bad words."""
    banned = [
        (row, token)
        for row, place in edits.waiting
        if place.sequence.num_generated + place.num_drafts < place.sequence.request.sampling.min_tokens
        and place.sequence.request.sampling.grammar is None  # a complete grammar allows only the end
        for token in place.sequence.stop_ids
    ]
    banned += [
        (row, token)
        for row, place, words in edits.bad_words
        for token in words.banned_after([*place.sequence.token_ids[-words.longest :], *place.drafts])
    ]
    if banned:
        places = to_device(banned, logits.device)
        logits[places[:, 0], places[:, 1]] = -torch.inf


def _penalise(logits: Tensor, penalties: Penalties) -> None:
    """Apply penalties: multiplicative repetition (Keskar et al. 2019, arXiv 1909.05858), and OpenAI's additive ones."""
    histories = [_history(place.sequence).followed_by(place.drafts) for place in penalties.places]
    lengths = [len(ids) for ids, _ in histories]
    index = np.stack(
        [
            np.repeat(penalties.rows, lengths),
            np.repeat(np.arange(len(lengths)), lengths),
            np.concatenate([ids for ids, _ in histories]),
        ]
    )
    device = logits.device
    rows, owners, ids = to_device(index, device)
    counts = to_device(np.concatenate([counts for _, counts in histories]), device)
    repetition, frequency, presence = penalties.values[owners].unbind(1)
    values = logits[rows, ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[rows, ids] = values - frequency * counts - presence * (counts > 0)


def _history(sequence: Sequence) -> TokenHistory:
    """Return the token history, created at the first token. ``note_token`` keeps it up to date."""
    if sequence.history is None:
        is_over_prompt = sequence.request.sampling.repetition_penalty != 1.0
        prompt = sequence.token_ids[: sequence.num_prompt] if is_over_prompt else []
        sequence.history = TokenHistory(prompt, sequence.token_ids[sequence.num_prompt :])
    return sequence.history
