"""The sampling parameters of a batch as tensors, built once per composition of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.kernels import gpu
from inference.engine.messages import SamplingParams
from inference.engine.sampling.logit_edits import Edits, build_edits, is_edited
from inference.engine.sampling.transfers import to_device
from inference.engine.sampling.truncation import Limit, Limits, Rows
from inference.engine.scheduling.sequence import Sequence

EVERY_ROW = slice(None)


@dataclass(frozen=True, slots=True)
class RandomRows:
    """The rows that are sampled randomly. ``rows``: indices among the edited rows. ``temperature``: ``[rows, 1]``."""

    sequences: tuple[Sequence, ...]
    rows: Rows
    temperature: Tensor
    limits: Limits


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Limits by row, ``[rows]``: ``top_k`` int32, 0 for none; ``top_p`` float64, 1 for none; ``min_p`` float32, 0 for
    none.
    """

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


@dataclass(frozen=True, slots=True)
class SimpleRows:
    """Rows without edited logits and typical-p. ``temperatures``: float32 ``[rows]``, 0 for the likeliest token; None
    if no row is random. ``limits``: None if there are none.
    """

    temperatures: Tensor | None
    limits: RowLimits | None


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """The rows with requested log-probabilities, and the number of top tokens of each."""

    places: tuple[int, ...]
    rows: Rows
    num_tops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SamplingTable:
    """The parameters of a batch. ``worked``: rows that need more than an argmax; None if there are none.
    ``simple``: the same for the kernels of a GPU; None if they cannot choose the tokens.
    """

    sequences: list[Sequence]
    masked: tuple[int, ...]
    worked: Rows | None
    edits: Edits
    random: RandomRows | None
    logprobs: LogprobRows | None
    simple: SimpleRows | None

    def fits(self, sequences: list[Sequence], masked: tuple[int, ...]) -> bool:
        return self.sequences == sequences and self.masked == masked


def build_table(
    sequences: list[Sequence], masked: tuple[int, ...], vocab_size: int, device: torch.device
) -> SamplingTable:
    """Build the table. ``masked``: rows with a grammar."""
    constrained = set(masked)
    worked = [
        row
        for row, sequence in enumerate(sequences)
        if row in constrained or is_edited(sequence.request.sampling) or not sequence.request.sampling.is_greedy
    ]
    place = {row: i for i, row in enumerate(worked)}
    chosen = [sequences[row] for row in worked]
    edits = build_edits(chosen, [place[row] for row in masked], device)
    return SamplingTable(
        sequences=list(sequences),
        masked=masked,
        worked=_rows(worked, len(sequences), device) if worked else None,
        edits=edits,
        random=_random_rows(chosen, vocab_size, device),
        logprobs=_logprob_rows(sequences, vocab_size, device),
        simple=None if masked or not edits.are_none else _simple_rows(sequences, vocab_size, device),
    )


def _simple_rows(sequences: list[Sequence], vocab_size: int, device: torch.device) -> SimpleRows | None:
    params = [sequence.request.sampling for sequence in sequences]
    if not gpu.can_run(device) or any(p.typical_p < 1.0 and not p.is_greedy for p in params):
        return None
    if all(p.is_greedy for p in params):
        return SimpleRows(None, None)
    temperatures = to_device([0.0 if p.is_greedy else p.temperature for p in params], device, torch.float32)
    return SimpleRows(temperatures, _row_limits(params, vocab_size, device))


def _row_limits(params: list[SamplingParams], vocab_size: int, device: torch.device) -> RowLimits | None:
    top_k = [p.top_k if 0 < p.top_k < vocab_size else 0 for p in params]
    top_p, min_p = [min(p.top_p, 1.0) for p in params], [max(p.min_p, 0.0) for p in params]
    if not any(top_k) and not any(min_p) and min(top_p) == 1.0:
        return None
    kinds = ((top_k, torch.int32), (top_p, torch.float64), (min_p, torch.float32))
    return RowLimits(*(to_device(values, device, dtype) for values, dtype in kinds))


def _random_rows(sequences: list[Sequence], vocab_size: int, device: torch.device) -> RandomRows | None:
    rows = [i for i, sequence in enumerate(sequences) if not sequence.request.sampling.is_greedy]
    if not rows:
        return None
    params = [sequences[i].request.sampling for i in rows]
    temperature = to_device([[p.temperature] for p in params], device, torch.float32)
    return RandomRows(
        sequences=tuple(sequences[i] for i in rows),
        rows=_rows(rows, len(sequences), device),
        temperature=temperature,
        limits=_limits(params, vocab_size, device),
    )


def _limits(params: list[SamplingParams], vocab_size: int, device: torch.device) -> Limits:
    def has_top_k(p: SamplingParams) -> bool:
        return 0 < p.top_k < vocab_size

    def limit(value: Callable[[SamplingParams], float], is_on: Callable[[SamplingParams], bool]) -> Limit | None:
        rows = [i for i, p in enumerate(params) if is_on(p)]
        if not rows:
            return None
        values = to_device([[value(params[i])] for i in rows], device)
        return Limit(_rows(rows, len(params), device), values)

    cut = [p for p in params if p.top_p < 1.0]
    is_unbounded = [not has_top_k(p) for p in cut]
    return Limits(
        top_k=limit(lambda p: p.top_k, has_top_k),
        top_p=limit(lambda p: p.top_p, lambda p: p.top_p < 1.0),
        min_p=limit(lambda p: p.min_p, lambda p: p.min_p > 0.0),
        typical_p=limit(lambda p: p.typical_p, lambda p: p.typical_p < 1.0),
        width=max((p.top_k for p in params if has_top_k(p)), default=0),
        unbounded=to_device(is_unbounded, device) if any(is_unbounded) else None,
    )


def _logprob_rows(sequences: list[Sequence], vocab_size: int, device: torch.device) -> LogprobRows | None:
    asked = [(row, s.request.sampling.logprobs) for row, s in enumerate(sequences)]
    requested = [(row, min(num, vocab_size)) for row, num in asked if num is not None]
    if not requested:
        return None
    places, num_tops = zip(*requested, strict=True)
    return LogprobRows(places, _rows(list(places), len(sequences), device), num_tops)


def _rows(rows: list[int], num_rows: int, device: torch.device) -> Rows:
    """Select rows. All rows are a view, some rows a copy."""
    return EVERY_ROW if len(rows) == num_rows else to_device(rows, device)
