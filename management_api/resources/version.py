"""Published versions: retrieve, and start jobs that evaluate them."""

from __future__ import annotations

from typing import Any, TypedDict

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from management_api.resources.job import JobOut, job_started
from management_api.serializers import Integer, Number, ReadSerializer, StrictInput, Text, VisibleRowField, described
from management_api.viewset import Filters, Resource
from steering.corpora.corpus import prompts_of
from steering.corpora.corpus_registry import open_corpus
from steering.evaluation.headline import find_headlines
from steering.evaluation.params import (
    DEFAULT_CONTROLS,
    FACTORS,
    MAX_PROMPT_CHARS,
    MAX_PROMPTS,
    NEUTRAL_PROMPTS,
    TARGETS,
    CalibrationParams,
    ComparisonParams,
    Controls,
    EvaluationParams,
    SweepParams,
    Texts,
    judge_params,
)
from steering.evaluation.runner import UnpublishedEdits
from steering.evaluation.services import create_evaluation
from steering.models import ProfileVersion
from steering.profiles.drafts import draft_edits
from steering.spec.parsing import parse_edits
from steering.spec.units import STRONG_PUSH
from steering.spec.wording import changes
from steering.visibility import visible_versions

VIEW = "steering.view_profileversion"
EVALUATE = "steering.change_steeringprofile"
DEFAULTS = Texts()
DEFAULT_PROMPTS = 8  # of a corpus


class VersionOut(ReadSerializer):
    name = serializers.CharField(source="__str__", help_text="name@number")
    published_by = serializers.CharField(source="published_by.username", default=None, allow_null=True)

    class Meta:
        model = ProfileVersion
        fields: tuple[str, ...] = (
            "id",
            "profile",
            "number",
            "name",
            "note",
            "fingerprint",
            "published_by",
            "published_at",
            "edits",
        )


class Headline(TypedDict):
    """The headline KL: KL(base || steered) in nats per token, by a fixed recipe. ``kl`` is null if it is unstable."""

    kl: float | None
    low: float | None
    high: float | None
    recipe: str


class VersionDetail(VersionOut):
    headline_kl = serializers.SerializerMethodField(help_text="Null if no evaluation has measured it yet.")

    class Meta(VersionOut.Meta):
        fields: tuple[str, ...] = (*VersionOut.Meta.fields, "headline_kl")

    def get_headline_kl(self, version: ProfileVersion) -> Headline | None:
        found = find_headlines(version.profile.model, [version.fingerprint]).get(version.fingerprint)
        return None if found is None else Headline(kl=found.kl, low=found.low, high=found.high, recipe=found.recipe)


class VersionFilters(Filters):
    profile = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    fingerprint = serializers.CharField(max_length=64, required=False)


class TextsInput(StrictInput):
    prompts = serializers.ListField(child=Text(max_length=8_000), default=lambda: list(NEUTRAL_PROMPTS), max_length=256)
    corpus = Text(max_length=200, default="", allow_blank=True, help_text="Take the prompts from this corpus.")
    num_prompts = Integer(
        min_value=1, max_value=MAX_PROMPTS, default=DEFAULT_PROMPTS, help_text="How many prompts of the corpus."
    )
    max_tokens = Integer(default=DEFAULTS.max_tokens)
    temperature = Number(default=DEFAULTS.temperature)
    seed = Integer(default=DEFAULTS.seed)
    samples_per_prompt = Integer(
        default=DEFAULTS.samples_per_prompt, help_text="Answers to each prompt. Intervals are computed over prompts."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Replace the name of a corpus by its prompts. Raise MillmError for an unknown one."""
        if attrs["corpus"]:
            if "prompts" in self.initial_data:
                raise serializers.ValidationError({"corpus": "cannot be combined with `prompts`."})
            corpus = open_corpus(attrs["corpus"])
            attrs["prompts"] = list(prompts_of(corpus, attrs["num_prompts"], max_chars=MAX_PROMPT_CHARS))
        return attrs


class SweepInput(TextsInput):
    strengths = serializers.ListField(child=Number(), default=lambda: list(FACTORS), max_length=100)
    words = serializers.ListField(child=Text(max_length=100), default=list, max_length=200)
    random_directions = Integer(
        default=DEFAULT_CONTROLS.random_directions,
        help_text="Control arms that add random directions of the profile's relative size at its sites.",
    )
    random_features = Integer(
        default=DEFAULT_CONTROLS.random_features,
        help_text="Control arms that add random live features of the same relative size.",
    )
    control_system_prompt = Text(
        default="",
        allow_blank=True,
        max_length=8_000,
        help_text="A system prompt with the profile's goal, as a control.",
    )
    off_target = serializers.BooleanField(
        default=DEFAULT_CONTROLS.off_target,
        help_text="Ask multiple-choice questions about unrelated facts with and without the profile.",
    )
    judge = Text(
        default="",
        allow_blank=True,
        max_length=200,
        help_text="Scores concept, instruction and fluency of each answer: a model of this server, or `endpoint`.",
    )
    concept = Text(default="", allow_blank=True, max_length=1_000, help_text="What the judge looks for.")


class CalibrationInput(TextsInput):
    target = Number(
        default=TARGETS["medium"], help_text="KL(base || steered) on the unsteered answers, in nats per token."
    )
    push_cap = Number(default=STRONG_PUSH)


class ComparisonInput(TextsInput):
    other = VisibleRowField(find=visible_versions, default=None, allow_null=True)


@described(tags=["Profiles"])
class Versions(Resource):
    queryset = ProfileVersion.objects.none()
    serializer_class = VersionOut
    filters = VersionFilters
    permissions = {
        **dict.fromkeys(("list", "retrieve"), VIEW),
        **dict.fromkeys(("sweep", "calibrate", "compare"), EVALUATE),
    }

    def rows(self, user: User) -> QuerySet[ProfileVersion]:
        return visible_versions(user).select_related("profile__model", "published_by")

    @described(parameters=[VersionFilters])
    def list(self, request: Request) -> Response:
        """List published versions, newest first."""
        return super().list(request)

    @described(responses=VersionDetail)
    def retrieve(self, request: Request, pk: str) -> Response:
        """Return a version with its headline KL."""
        return Response(VersionDetail(self.get_object()).data)

    @described(request=SweepInput, responses={202: JobOut})
    @action(detail=True, methods=["post"])
    def sweep(self, request: Request, pk: str) -> Response:
        """Start a job that measures the effect of the version at multiples of its strength."""
        return self._start(sweep_params(self.get_object().pk, self.read(SweepInput)))

    @described(request=CalibrationInput, responses={202: JobOut})
    @action(detail=True, methods=["post"])
    def calibrate(self, request: Request, pk: str) -> Response:
        """Start a job that searches for the strength with the effect ``target``."""
        return self._start(calibration_params(self.get_object().pk, self.read(CalibrationInput)))

    @described(request=ComparisonInput, responses={202: JobOut})
    @action(detail=True, methods=["post"])
    def compare(self, request: Request, pk: str) -> Response:
        """Start a job that compares the answers of the version and of ``other`` (default: the unsteered model)."""
        return self._start(comparison_params(self.get_object().pk, self.read(ComparisonInput)))

    def _start(self, params: EvaluationParams) -> Response:
        return job_started(create_evaluation(params=params, owner=self.user))


def differences(before: ProfileVersion, after: ProfileVersion | None) -> list[dict[str, str]]:
    """Describe the changes from ``before`` to ``after``, or to the draft if ``after`` is None."""
    later = draft_edits(before.profile) if after is None else parse_edits(after.edits)
    return [{"kind": change.kind, "text": change.text} for change in changes(parse_edits(before.edits), later)]


def sweep_params(target: int | UnpublishedEdits, data: dict[str, Any]) -> SweepParams:
    controls = Controls(
        data["random_directions"], data["random_features"], data["control_system_prompt"], data["off_target"]
    )
    judge = judge_params(data["judge"], data["concept"])
    return SweepParams(target, _texts(data), tuple(data["strengths"]), tuple(data["words"]), controls, judge)


def calibration_params(target: int | UnpublishedEdits, data: dict[str, Any]) -> CalibrationParams:
    return CalibrationParams(target, _texts(data), data["target"], data["push_cap"])


def comparison_params(target: int | UnpublishedEdits, data: dict[str, Any]) -> ComparisonParams:
    other = data["other"]
    return ComparisonParams(target, None if other is None else other.pk, _texts(data))


def _texts(data: dict[str, Any]) -> Texts:
    prompts, samples = tuple(data["prompts"]), data["samples_per_prompt"]
    return Texts(prompts, data["max_tokens"], data["temperature"], data["seed"], samples)
