"""The comparison job: two versions, or a version and no steering, on the same prompts and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from jobs.running_job import RunningJob
from steering.errors import EvaluationError
from steering.evaluation.headline import headline_kl
from steering.evaluation.measures import AnswerRow, figure
from steering.evaluation.params import ComparisonParams, read_texts
from steering.evaluation.runner import (
    AT_ONCE,
    UNSTEERED,
    AnswerComparison,
    EvaluatedVersion,
    EvaluationRunner,
    GeneratedAnswer,
    Speaker,
)
from steering.evaluation.services import keep_evaluation
from steering.evaluation.text_measures import finite, mean
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
    sides = (Speaker(one.published), UNSTEERED if other is None else Speaker(other.published))
    runner, prompts = EvaluationRunner(one.model), params.texts.numbered_prompts
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
        numbers = range(first, first + len(batch))
        pairs += [
            {"prompt": prompt, "sample": number // len(params.texts.prompts), "answers": [a, b]}
            for number, prompt, a, b in zip(numbers, batch, *answers, strict=True)
        ]
        job.save_checkpoint({"pairs": pairs})
    rows = [_rows(pairs, side, len(params.texts.prompts)) for side in (0, 1)]
    kl = [figure("kl", side) for side in rows]
    success = [figure("success", side) for side in rows]
    return {
        "version": one.published.label,
        "other": "" if other is None else other.published.label,
        "model": one.model,
        "texts": asdict(params.texts),
        "kl": [None if found is None else found.value for found in kl],
        "kl_intervals": [[] if found is None else [found.low, found.high] for found in kl],
        "success": [None if found is None else found.value for found in success],
        "headlines": [
            None if side is None else headline_kl(runner, side, job.check_cancelled) for side in (one, other)
        ],
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


def _rows(pairs: Sequence[dict[str, Any]], side: int, num_prompts: int) -> list[AnswerRow]:
    """Return one side's answers as rows, with KL(this side || other side) on them."""
    answers = [pair["answers"][side] for pair in pairs]
    return [
        AnswerRow(
            number % num_prompts,
            number // num_prompts,
            tokens=answer["num_tokens"],
            kl=None if answer["kl"] is None else answer["kl"] * answer["num_tokens"],
            error=answer["failure"],
        )
        for number, answer in enumerate(answers)
    ]
