"""The job that labels the features of an SAE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from django.contrib.auth.models import User
from django.db.models import Q

from core.chat_endpoint import ChatEndpoint, ChatEndpointError
from inference.models import LanguageModel
from jobs.models import Job
from jobs.services import enqueue_job
from steering.errors import EvaluationError
from steering.evaluation.judging import judge_endpoint
from steering.evaluation.params import ENDPOINT
from steering.evaluation.runner import UNSTEERED, EvaluationRunner, Sampling
from steering.features.search import FeatureQuerySet
from steering.features.services import keep_label
from steering.interpretation.answers import detection_score, read_decision, read_label
from steering.interpretation.prompts import detection_prompt, explanation_prompt, plain
from steering.models import SAE, Feature
from steering.profiles.snapshot import registered_saes

if TYPE_CHECKING:
    from jobs.running_job import RunningJob

SOURCE = "interpreted by "
AT_ONCE = 4  # features
NUM_NEGATIVES = 4
MIN_EXAMPLES = 2
MIN_BAND = 0.25  # of the largest activation: below, a text often says nothing about the label
GIVE_UP_AFTER = 24  # features, if none of them could be labelled because requests failed
_LABEL_TOKENS = 24
_DECISION_TOKENS = 3
_REQUESTS_AT_ONCE = 8


class Interpreter(Protocol):
    """A chat model that explains features."""

    @property
    def name(self) -> str: ...

    def answer(self, prompts: Sequence[str], max_tokens: int) -> list[str | None]:
        """Return an answer to each prompt, the likeliest one; None where a request failed.

        Raise EvaluationError if no request can succeed.
        """


@dataclass(frozen=True)
class LocalInterpreter:
    """A model of this server."""

    name: str

    def answer(self, prompts: Sequence[str], max_tokens: int) -> list[str | None]:
        answers = EvaluationRunner(self.name).generate(prompts, UNSTEERED, Sampling(max_tokens, temperature=0.0))
        return [None if answer.failure else answer.text for answer in answers]


@dataclass(frozen=True)
class EndpointInterpreter:
    """The endpoint that the settings name."""

    endpoint: ChatEndpoint

    @property
    def name(self) -> str:
        return self.endpoint.model

    def answer(self, prompts: Sequence[str], max_tokens: int) -> list[str | None]:
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            return list(pool.map(lambda prompt: self._ask(prompt, max_tokens), prompts))

    def _ask(self, prompt: str, max_tokens: int) -> str | None:
        try:
            return self.endpoint.complete([{"role": "user", "content": prompt}], max_tokens=max_tokens)
        except ChatEndpointError as error:
            if error.is_final:
                raise EvaluationError(f"The endpoint cannot be used: {error.message}") from error
            return None


def request_interpretation(
    *, sae: SAE, model: str, replaces: bool = False, limit: int | None = None, owner: User | None = None
) -> Job:
    """Queue the job. ``model`` is a generation model of this server, or `endpoint`.

    With ``replaces``, labels of earlier runs are replaced too; labels of people and of files never are. Raise
    EvaluationError if there is no such model.
    """
    if model == ENDPOINT:
        judge_endpoint()
    elif not LanguageModel.objects.filter(name=model, kind=LanguageModel.Kind.GENERATION).exists():
        raise EvaluationError(f"`{model}` is no generation model of this server, nor `{ENDPOINT}`.", param="model")
    if limit is not None and limit < 1:
        raise EvaluationError(f"`limit` must be at least 1, got {limit}.", param="limit")
    params = {"sae": sae.pk, "model": model, "replaces": replaces, "limit": limit}
    return enqueue_job(kind="steering.interpret", params=params, owner=owner, title=f"Label features of {sae}")


def run_interpretation(job: RunningJob, interpreter: Interpreter | None = None) -> dict[str, Any]:
    """Label features in the order of their indices. A run resumes after the last finished batch."""
    sae = SAE.objects.get(pk=job.params["sae"])
    interpreter = interpreter or _interpreter(job.params["model"])
    state = {"after": -1, "counts": {}, **job.checkpoint}
    counts = Counter(state["counts"])
    rows = open_features(sae, replaces=job.params["replaces"]).filter(index__gt=state["after"])
    todo = list(rows.values_list("index", flat=True))
    if job.params["limit"] is not None:
        todo = todo[: max(0, job.params["limit"] - counts.total())]
    total = counts.total() + len(todo)
    for first in range(0, len(todo), AT_ONCE):
        job.progress(counts.total(), total, "Labelling features")
        batch = todo[first : first + AT_ONCE]
        features = list(sae.features.filter(index__in=batch).order_by("index"))
        counts.update(_interpret(sae, features, interpreter))
        if counts["failed"] >= GIVE_UP_AFTER and counts["failed"] == counts.total():
            raise EvaluationError(f"{interpreter.name} answered none of {counts['failed']} requests.")
        job.save_checkpoint({"after": batch[-1], "counts": dict(counts)})
    registered_saes.invalidate()
    job.progress(total, total, "Labelling features")
    return {"sae": sae.pk, **{name: counts[name] for name in ("labelled", "nonsense", "failed", "edited")}}


def _interpreter(model: str) -> Interpreter:
    return EndpointInterpreter(judge_endpoint()) if model == ENDPOINT else LocalInterpreter(model)


def open_features(sae: SAE, *, replaces: bool) -> FeatureQuerySet:
    """Return features to label: those with examples and without a label, or with one of an earlier run."""
    allowed = Q(label="")
    if replaces:
        allowed |= Q(label_source__startswith=SOURCE)
    rows: FeatureQuerySet = sae.features.filter(allowed, examples__1__isnull=False).order_by("index")
    return rows


def _interpret(sae: SAE, features: Sequence[Feature], interpreter: Interpreter) -> list[str]:
    """Label some features; return for each "labelled", "nonsense", "failed" or "edited" (by someone meanwhile)."""
    explained = [(feature.examples[::2], _held_out(feature)) for feature in features]
    prompts = [
        explanation_prompt(own, feature.top_tokens[:5]) for feature, (own, _) in zip(features, explained, strict=True)
    ]
    answers = interpreter.answer(prompts, _LABEL_TOKENS)
    labels = [
        None if answer is None else read_label(answer, [plain(one) for one in feature.examples])
        for feature, answer in zip(features, answers, strict=True)
    ]
    questions: list[tuple[int, bool, str]] = []
    for number, (feature, label) in enumerate(zip(features, labels, strict=True)):
        if label is not None:
            questions += [(number, True, detection_prompt(label, one)) for one in explained[number][1]]
            questions += [(number, False, detection_prompt(label, one)) for one in _others(sae, feature)]
    decisions = interpreter.answer([question for _, _, question in questions], _DECISION_TOKENS) if questions else []
    outcomes = []
    for number, (feature, answer, label) in enumerate(zip(features, answers, labels, strict=True)):
        if label is None:
            outcomes.append("failed" if answer is None else "nonsense")
            continue
        sides: dict[bool, list[bool | None]] = {True: [], False: []}
        for (owner, side, _), decision in zip(questions, decisions, strict=True):
            if owner == number:
                sides[side].append(None if decision is None else read_decision(decision))
        is_stored = _store(feature, label, detection_score(sides[True], sides[False]), interpreter.name)
        outcomes.append("labelled" if is_stored else "edited")
    return outcomes


def _held_out(feature: Feature) -> list[Mapping[str, Any]]:
    """Return examples for detection: half of the top ones, and one of each band that is not weak."""
    bands = [band["examples"][0] for band in feature.example_bands if band["examples"] and band["low"] >= MIN_BAND]
    return [*feature.examples[1::2], *bands]


def _others(sae: SAE, feature: Feature) -> list[Mapping[str, Any]]:
    """Return examples of other features, the same ones in each run."""
    step = max(1, sae.d_sae // (NUM_NEGATIVES + 1))
    indices = [(feature.index + number * step + 1) % sae.d_sae for number in range(NUM_NEGATIVES * 2)]
    rows = sae.features.filter(index__in=indices, examples__0__isnull=False).exclude(pk=feature.pk).order_by("index")
    return [row.examples[0] for row in rows[:NUM_NEGATIVES]]


def _store(feature: Feature, label: str, score: float | None, by: str) -> bool:
    """Save a label unless the feature's label was changed since it was read. Return whether it was saved.

    The label that it replaces becomes an explanation.
    """
    unchanged = Feature.objects.filter(pk=feature.pk, label=feature.label, label_source=feature.label_source)
    is_saved = bool(unchanged.update(label=label, label_source=f"{SOURCE}{by}"[:300], label_score=score))
    if is_saved:
        keep_label(feature, label)
    return is_saved
