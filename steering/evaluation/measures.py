"""The measurements of one answer, and the figures of all answers of an arm with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from steering.evaluation.intervals import Estimate, Floats, PromptSums, estimate, estimate_difference

Ratio = tuple[float, float]


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """The measurements of one answer. ``prompt`` and ``sample`` number it; arms are paired by both.

    ``kl``: sum over its ``tokens`` of KL(steered || base), in nats. ``kl_base``: sum of KL(base || steered) over the
    ``base_tokens`` of the unsteered answer with the same prompt and seed. ``logprob``: of the answer under the
    unsteered model, summed, in nats. ``repeat``: share of its 4-grams that occurred before. ``words`` of ``num_words``
    are in the word list. ``activation`` is summed over ``captured`` tokens, of which ``active`` are above 0.
    ``concept``, ``instruction`` and ``fluency`` are a judge's scores, 0 to 2; ``judge_error`` says why there are none.
    ``error`` says why the answer, or a comparison of it, failed; a measurement that is not known is None.
    """

    prompt: int
    sample: int
    tokens: int = 0
    kl: float | None = None
    base_tokens: int = 0
    kl_base: float | None = None
    logprob: float | None = None
    repeat: float | None = None
    words: int = 0
    num_words: int = 0
    activation: float | None = None
    active: int = 0
    captured: int = 0
    concept: float | None = None
    instruction: float | None = None
    fluency: float | None = None
    error: str = ""
    judge_error: str = ""


Columns = dict[str, list[Any]]
"""Rows as JSON: one list for each field of :class:`AnswerRow`."""


def to_columns(rows: Iterable[AnswerRow]) -> Columns:
    known = list(rows)
    return {field.name: [getattr(row, field.name) for row in known] for field in fields(AnswerRow)}


def from_columns(columns: Mapping[str, Sequence[Any]]) -> list[AnswerRow]:
    """Read rows; columns that an older report lacks have their defaults."""
    names = [field.name for field in fields(AnswerRow) if field.name in columns]
    values = zip(*(columns[name] for name in names), strict=True)
    return [AnswerRow(**dict(zip(names, row, strict=True))) for row in values]


def harmonic_score(row: AnswerRow) -> float | None:
    """Return the harmonic mean of the judge's three scores, 0 if one of them is 0; None if one is not known."""
    scores = (row.concept, row.instruction, row.fluency)
    if any(score is None for score in scores):
        return None
    known = [score for score in scores if score is not None]
    return 0.0 if min(known) <= 0 else len(known) / math.fsum(1 / score for score in known)


def _exp(ratio: Floats) -> Floats:
    values: Floats = np.exp(ratio)
    return values


def _same(ratio: Floats) -> Floats:
    return ratio


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of an arm: the ratio of two sums over answers. ``of`` returns an answer's part, None if not known."""

    of: Callable[[AnswerRow], Ratio | None]
    transform: Callable[[Floats], Floats] = _same


def _per(total: float | None, count: float) -> Ratio | None:
    return None if total is None or not count else (total, count)


MEASURES: Mapping[str, Measure] = {
    "kl_base": Measure(lambda row: _per(row.kl_base, row.base_tokens)),
    "kl": Measure(lambda row: _per(row.kl, row.tokens)),
    "perplexity": Measure(lambda row: _per(None if row.logprob is None else -row.logprob, row.tokens), _exp),
    "repeat": Measure(lambda row: _per(row.repeat, 1)),
    "words": Measure(lambda row: _per(row.words, row.num_words)),
    "activation": Measure(lambda row: _per(row.activation, row.captured)),
    "active": Measure(lambda row: _per(row.active, row.captured)),
    "success": Measure(lambda row: (0.0 if row.error else 1.0, 1.0)),
    "concept": Measure(lambda row: _per(row.concept, 1)),
    "instruction": Measure(lambda row: _per(row.instruction, 1)),
    "fluency": Measure(lambda row: _per(row.fluency, 1)),
    "score": Measure(lambda row: _per(harmonic_score(row), 1)),
}


def figure(name: str, rows: Sequence[AnswerRow]) -> Estimate | None:
    """Return a figure of the answers with its interval; None if no answer has it."""
    return estimate(_sums(name, rows, _num_prompts(rows)))


def difference(name: str, rows: Sequence[AnswerRow], base: Sequence[AnswerRow]) -> Estimate | None:
    """Return the figure of ``rows`` minus that of ``base``, paired by prompt, with its interval."""
    size = max(_num_prompts(rows), _num_prompts(base))
    return estimate_difference(_sums(name, rows, size), _sums(name, base, size))


def _sums(name: str, rows: Sequence[AnswerRow], num_prompts: int) -> PromptSums:
    measure = MEASURES[name]
    parts = ((row.prompt, measure.of(row)) for row in rows)
    known = [(prompt, *part) for prompt, part in parts if part is not None]
    return PromptSums.over(num_prompts, known, measure.transform)


def _num_prompts(rows: Sequence[AnswerRow]) -> int:
    return 1 + max((row.prompt for row in rows), default=-1)
