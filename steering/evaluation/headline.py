"""The headline KL: one figure for how far edits move a model, by a fixed recipe, so that profiles can be compared.

The recipe: KL(base || steered) in nats per token, on answers that the unsteered model gives to the report half of the
shipped neutral prompts, with fixed length, temperature and seed. It is measured once for a model and a fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

from inference.models import LanguageModel
from steering.corpora.prompt_sets import neutral_prompts
from steering.evaluation.arms import Bench
from steering.evaluation.measures import figure, to_columns
from steering.evaluation.params import Texts
from steering.evaluation.runner import UNSTEERED, EvaluatedVersion, EvaluationRunner, Speaker
from steering.models import HeadlineKL

RECIPE = "1"
TEXTS = Texts(
    prompts=tuple(prompt.prompt for prompt in neutral_prompts() if prompt.half == "report"),
    max_tokens=32,
    temperature=1.0,
    seed=0,
)


def headline_kl(runner: EvaluationRunner, subject: EvaluatedVersion, check: Callable[[], None]) -> dict[str, Any]:
    """Return the headline KL of the edits as they are, measured unless it is known. ``check`` raises to stop."""
    model = LanguageModel.objects.get(name=subject.model)
    found = find_headlines(model, [subject.published.fingerprint]).get(subject.published.fingerprint)
    if found is None:
        found = _measure(model, runner, subject, check)
    return {"kl": found.kl, "low": found.low, "high": found.high, "recipe": found.recipe, "text": str(found)}


def find_headlines(model: LanguageModel, fingerprints: Collection[str]) -> dict[str, HeadlineKL]:
    """Return the known headline KLs by fingerprint, in one query."""
    rows = HeadlineKL.objects.filter(
        model=model, fingerprint__in=fingerprints, recipe=RECIPE, weights=_weights(model)
    ).defer("result")
    return {row.fingerprint: row for row in rows}


def headline_key(model: LanguageModel, fingerprint: str) -> dict[str, Any]:
    """Return the fields that identify a headline KL."""
    return {"model": model, "fingerprint": fingerprint, "recipe": RECIPE, "weights": _weights(model)}


def _measure(
    model: LanguageModel, runner: EvaluationRunner, subject: EvaluatedVersion, check: Callable[[], None]
) -> HeadlineKL:
    bench = Bench(runner, TEXTS, check)
    base = bench.generate(UNSTEERED)
    compared = bench.compare(base, UNSTEERED, Speaker(subject.published))
    rows = [bench.base_row(number, *pair) for number, pair in enumerate(zip(base, compared, strict=True))]
    found, failures = figure("kl_base", rows), sum(bool(row.error) for row in rows)
    known = None if failures else found
    values = {
        "kl": None if known is None else known.value,
        "low": None if known is None else known.low,
        "high": None if known is None else known.high,
        "result": {"texts": asdict(TEXTS), "failures": failures, "answers": to_columns(rows)},
    }
    key = headline_key(model, subject.published.fingerprint)
    return HeadlineKL.objects.get_or_create(**key, defaults=values)[0]


def _weights(model: LanguageModel) -> str:
    return f"{model.source}@{model.revision} {model.dtype} {model.quantization}"
