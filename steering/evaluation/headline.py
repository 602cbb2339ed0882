"""The headline KL: one figure for how far edits move a model, by a fixed recipe, so that profiles can be compared.

The recipe: KL(base || steered) in nats per token, on answers that the unsteered model gives to the report half of the
shipped neutral prompts, with fixed length, temperature and seed. It is measured once for a model and a fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any, Literal

from django.db.models import QuerySet

from inference.models import LanguageModel
from jobs.running_job import RunningJob
from steering.corpora.prompt_sets import neutral_prompts
from steering.errors import InvalidProfileError
from steering.evaluation.arms import Bench
from steering.evaluation.measures import figure, to_columns
from steering.evaluation.params import Texts
from steering.evaluation.recommendation import verdict
from steering.evaluation.runner import UNSTEERED, EvaluatedVersion, EvaluationRunner, Speaker
from steering.models import Evaluation, HeadlineKL, ProfileVersion, SteeringProfile
from steering.profiles.draft_checks import usable_edits
from steering.profiles.drafts import draft_rows
from steering.profiles.snapshot import DRAFT
from steering.spec.rendering import edits_to_json, fingerprint

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


def run_headline(job: RunningJob) -> dict[str, Any]:
    """Run the job "steering.headline": measure the headline KL of a version or a draft, unless it is known."""
    target = job.params["version"]
    subject = EvaluatedVersion.find(target)
    found = headline_kl(EvaluationRunner(subject.model), subject, job.check_cancelled)
    profile = (
        ProfileVersion.objects.values_list("profile", flat=True).get(pk=target)
        if isinstance(target, int)
        else target["profile"]
    )
    return {"version": subject.published.label, "profile": profile, **found}


@dataclass(frozen=True)
class Evidence:
    """What is known of the effect of a profile's live version or draft.

    ``recommended`` is the result of the newest ``sweep``, an evaluation's primary key; both are None without one.
    """

    target: Literal["version", "draft"]
    label: str
    headline: HeadlineKL | None
    sweep: int | None = None
    recommended: str | None = None


def profile_evidence(profile: SteeringProfile) -> list[Evidence]:
    """Return the evidence of the live version, and of the draft if it can steer and its effect is another one."""
    latest, edits = profile.latest_version, _draft_edits(profile)
    draft = None if edits is None else fingerprint(edits)
    live = None if latest is None else latest.fingerprint
    headlines = find_headlines(profile.model, [one for one in (live, draft) if one is not None])
    sweeps = Evaluation.objects.filter(kind=Evaluation.Kind.SWEEP)
    rows = []
    if latest is not None:
        rows.append(_evidence("version", str(latest), headlines.get(latest.fingerprint), sweeps.filter(version=latest)))
    if edits is not None and draft is not None and draft != live:
        of_draft = sweeps.filter(profile=profile, edits=edits_to_json(edits))
        rows.append(_evidence("draft", f"{profile.name}{DRAFT}", headlines.get(draft), of_draft))
    return rows


def _evidence(
    target: Literal["version", "draft"], label: str, headline: HeadlineKL | None, sweeps: QuerySet[Evaluation]
) -> Evidence:
    pk, recommendation = sweeps.values_list("pk", "result__recommendation").first() or (None, None)
    return Evidence(target, label, headline, pk, _proposal(recommendation))


def _draft_edits(profile: SteeringProfile) -> Any:
    """Return the draft's edits; None if they cannot steer."""
    try:
        return usable_edits(profile, draft_rows(profile))
    except InvalidProfileError:
        return None


def _proposal(found: dict[str, Any] | None) -> str | None:
    """Describe a sweep's recommendation; sweeps of earlier versions have none."""
    if found is None:
        return None
    return verdict(found).removeprefix("Recommended: ")


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
