"""The comparison job: two versions, or a version and no steering, on the same prompts and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from jobs.running_job import RunningJob
from steering.errors import EvaluationError
from steering.evaluation.params import ComparisonParams, read_texts
from steering.evaluation.runner import AT_ONCE, AnswerComparison, EvaluatedVersion, EvaluationRunner, GeneratedAnswer
from steering.evaluation.services import keep_evaluation
from steering.evaluation.sweep import finite
from steering.evaluation.text_measures import mean
from steering.models import Evaluation


def read_params(params: dict[str, Any]) -> ComparisonParams:
    return ComparisonParams(params["version"], params["other"], read_texts(params["texts"]))


def run_comparison(job: RunningJob) -> dict[str, Any]:
    """Run the job "steering.compare" and store its report."""
    return keep_evaluation(Evaluation.Kind.COMPARISON, job, compare(job))


def compare(job: RunningJob) -> dict[str, Any]:
    """Return the report: the answers of both sides, and the divergence of the other side at each token."""
    params = read_params(job.params)
    one, other = (
        EvaluatedVersion.find(params.version),
        None if params.other is None else EvaluatedVersion.find(params.other),
    )
    if other is not None and other.model != one.model:
        raise EvaluationError(f"{one.published.label} and {other.published.label} belong to different models.")
    sides = (one.published, None if other is None else other.published)
    runner, prompts = EvaluationRunner(one.model), params.texts.prompts
    pairs: list[dict[str, Any]] = list(job.checkpoint.get("pairs", []))
    for first in range(len(pairs), len(prompts), AT_ONCE):
        job.progress(first, len(prompts), prompts[first])
        batch = prompts[first : first + AT_ONCE]
        answers = []
        for this, other_side in (sides, sides[::-1]):
            generated = runner.generate(batch, this, params.texts.sampling, first=first)
            job.check_cancelled()
            compared = runner.compare(list(zip(batch, generated, strict=True)), this, other_side)
            answers.append([_answer(*pair) for pair in zip(generated, compared, strict=True)])
            job.check_cancelled()
        pairs += [{"prompt": p, "answers": [a, b]} for p, a, b in zip(batch, *answers, strict=True)]
        job.save_checkpoint({"pairs": pairs})
    return {
        "version": one.published.label,
        "other": "" if other is None else other.published.label,
        "model": one.model,
        "texts": asdict(params.texts),
        "kl": [_mean_kl(pairs, side) for side in (0, 1)],
        "pairs": pairs,
    }


def _answer(answer: GeneratedAnswer, compared: AnswerComparison) -> dict[str, Any]:
    """Return an answer as JSON: its pieces of text, each with the sum of its tokens' divergences."""
    pieces, place = [], 0
    for piece in answer.pieces:
        kl = sum(compared.kl[place : place + piece.num_tokens])
        pieces.append([piece.text, finite(kl)])
        place += piece.num_tokens
    return {
        "pieces": pieces,
        "kl": finite(mean(compared.kl)),
        "num_tokens": len(answer.token_ids),
        "finish_reason": answer.finish_reason,
        "failure": answer.failure or compared.failure,
    }


def _mean_kl(pairs: Sequence[dict[str, Any]], side: int) -> float | None:
    """Return the mean divergence of one side's answers, in nats per token."""
    known = [pair["answers"][side] for pair in pairs if pair["answers"][side]["kl"] is not None]
    num_tokens = sum(answer["num_tokens"] for answer in known)
    return sum(answer["kl"] * answer["num_tokens"] for answer in known) / num_tokens if num_tokens else None
