"""Comparison: two versions, or one and no steering, on the same prompts and seeds, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from jobs.running_job import RunningJob
from steering.errors import EvaluationError
from steering.evaluation.params import ComparisonParams, read_texts
from steering.evaluation.runner import AT_ONCE, AnswerComparison, EvaluatedVersion, EvaluationRunner, GeneratedAnswer
from steering.evaluation.sweep import finite
from steering.evaluation.text_measures import mean


def read_wish(params: dict[str, Any]) -> ComparisonParams:
    return ComparisonParams(params["version"], params["other"], read_texts(params["texts"]))


def run_comparison(job: RunningJob) -> dict[str, Any]:
    """Each side's answers, and how far the other one's distributions are from it at each of their tokens."""
    wish = read_wish(job.params)
    one, other = EvaluatedVersion.find(wish.version), None if wish.other is None else EvaluatedVersion.find(wish.other)
    if other is not None and other.model != one.model:
        raise EvaluationError(f"{one.published.label} and {other.published.label} belong to different models.")
    sides = (one.published, None if other is None else other.published)
    bench, prompts = EvaluationRunner(one.model), wish.texts.prompts
    pairs: list[dict[str, Any]] = list(job.checkpoint.get("pairs", []))
    for first in range(len(pairs), len(prompts), AT_ONCE):
        job.progress(first, len(prompts), prompts[first])
        some = prompts[first : first + AT_ONCE]
        answers = []
        for mine, theirs in (sides, sides[::-1]):
            written = bench.write(some, mine, wish.texts.sampling, first=first)
            job.check_cancelled()
            compared = bench.compare(list(zip(some, written, strict=True)), mine, theirs)
            answers.append([_answer(text, kl) for text, kl in zip(written, compared, strict=True)])
            job.check_cancelled()
        pairs += [{"prompt": p, "answers": [a, b]} for p, a, b in zip(some, *answers, strict=True)]
        job.save_checkpoint({"pairs": pairs})
    return {
        "version": one.published.label,
        "other": "" if other is None else other.published.label,
        "model": one.model,
        "texts": asdict(wish.texts),
        "kl": [_mean_kl(pairs, side) for side in (0, 1)],
        "pairs": pairs,
    }


def _answer(written: GeneratedAnswer, compared: AnswerComparison) -> dict[str, Any]:
    """Pieces of text with the sum of their tokens' divergences."""
    pieces, place = [], 0
    for piece in written.pieces:
        kl = sum(compared.kl[place : place + piece.num_tokens])
        pieces.append([piece.text, finite(kl)])
        place += piece.num_tokens
    return {
        "pieces": pieces,
        "kl": finite(mean(compared.kl)),
        "num_tokens": len(written.token_ids),
        "finish_reason": written.finish_reason,
        "failure": written.failure or compared.failure,
    }


def _mean_kl(pairs: Sequence[dict[str, Any]], side: int) -> float | None:
    """Nats per token of that side's answers."""
    known = [pair["answers"][side] for pair in pairs if pair["answers"][side]["kl"] is not None]
    num_tokens = sum(answer["num_tokens"] for answer in known)
    return sum(answer["kl"] * answer["num_tokens"] for answer in known) / num_tokens if num_tokens else None
