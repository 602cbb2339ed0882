"""Forms that start an evaluation. The limits are those of :mod:`steering.evaluation.params`."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import QuerySet

from steering.errors import EvaluationError
from steering.evaluation.params import (
    DEFAULT_CONTROLS,
    ENDPOINT,
    FACTORS,
    NEUTRAL_PROMPTS,
    TARGETS,
    CalibrationParams,
    ComparisonParams,
    Controls,
    EvaluationParams,
    SweepParams,
    Texts,
    judge_params,
    read_numbers,
)
from steering.models import ProfileVersion
from steering.spec.units import STRONG_PUSH

DEFAULTS = Texts()


class EvaluationForm(forms.Form):
    """The fields of all evaluations. ``params`` is set if the form is valid."""

    prompts = forms.CharField(
        initial="\n".join(NEUTRAL_PROMPTS),
        widget=forms.Textarea(attrs={"rows": 9, "cols": 70}),
        help_text="One per line.",
    )
    max_tokens = forms.IntegerField(initial=DEFAULTS.max_tokens, help_text="Per answer.")
    temperature = forms.FloatField(initial=DEFAULTS.temperature)
    seed = forms.IntegerField(initial=DEFAULTS.seed)
    samples_per_prompt = forms.IntegerField(
        required=False,
        initial=DEFAULTS.samples_per_prompt,
        help_text="Answers to each prompt, with different seeds. Intervals are computed over prompts.",
    )

    params: EvaluationParams

    def __init__(self, version: ProfileVersion, others: QuerySet[ProfileVersion], data: Any = None) -> None:
        """``others`` are the versions to choose from in a comparison."""
        super().__init__(data)
        self.version = version

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if not self.errors:
            try:
                self.params = self.make_params(values)
            except EvaluationError as error:
                self.add_error(None, str(error))
        return values

    def make_params(self, values: dict[str, Any]) -> EvaluationParams:
        raise NotImplementedError

    def texts(self, values: dict[str, Any]) -> Texts:
        prompts = tuple(line for line in values["prompts"].splitlines() if line.strip())
        samples = DEFAULTS.samples_per_prompt if values["samples_per_prompt"] is None else values["samples_per_prompt"]
        return Texts(prompts, values["max_tokens"], values["temperature"], values["seed"], samples)


class SweepForm(EvaluationForm):
    factors = forms.CharField(
        label="Strengths",
        initial=", ".join(f"{factor:g}" for factor in FACTORS),
        help_text="Multiples of the version's own strengths. The unsteered model is always measured too.",
    )
    words = forms.CharField(
        required=False, help_text="Words that signal the concept, separated by commas. We count how often they appear."
    )
    random_directions = forms.IntegerField(
        required=False,
        initial=DEFAULT_CONTROLS.random_directions,
        help_text="Control: random directions with the profile's relative size, at the same site.",
    )
    random_features = forms.IntegerField(
        required=False,
        initial=DEFAULT_CONTROLS.random_features,
        help_text="Control: random live features of the SAE at the profile's site, with the same relative size.",
    )
    control_system_prompt = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 2, "cols": 70}),
        help_text="Control: a system prompt with the profile's goal, without steering.",
    )
    off_target = forms.BooleanField(
        required=False,
        initial=DEFAULT_CONTROLS.off_target,
        label="Off-target check",
        help_text="Ask multiple-choice questions about unrelated facts with and without the profile.",
    )
    judge = forms.CharField(
        required=False,
        help_text="Scores concept, instruction and fluency of each answer, 0 to 2: a model of this server, or "
        f'"{ENDPOINT}" for that of MILLM_JUDGE_BASE_URL.',
    )
    concept = forms.CharField(
        required=False, max_length=1_000, help_text="What the judge looks for, such as a gloomy mood."
    )
    field_order = ("factors", "words", "concept", "judge", "control_system_prompt", "prompts")

    def make_params(self, values: dict[str, Any]) -> SweepParams:
        words = tuple(word.strip() for word in values["words"].split(",") if word.strip())
        controls = Controls(
            values["random_directions"] or 0,
            values["random_features"] or 0,
            values["control_system_prompt"],
            values["off_target"],
        )
        factors, judge = read_numbers(values["factors"]), judge_params(values["judge"], values["concept"])
        return SweepParams(self.version.pk, self.texts(values), factors, words, controls, judge)


class CalibrationForm(EvaluationForm):
    target = forms.FloatField(
        initial=TARGETS["medium"],
        help_text="KL(base‖steered) on the unsteered answers, in nats per token: "
        + ", ".join(f"{name} {value:g}" for name, value in TARGETS.items())
        + ".",
    )
    push_cap = forms.FloatField(
        label="Cap on each edit",
        initial=STRONG_PUSH,
        help_text="Largest relative size of a single edit (× residual norm).",
    )
    field_order = ("target", "push_cap", "prompts")

    def make_params(self, values: dict[str, Any]) -> CalibrationParams:
        return CalibrationParams(self.version.pk, self.texts(values), values["target"], values["push_cap"])


class ComparisonForm(EvaluationForm):
    other = forms.ModelChoiceField(
        ProfileVersion.objects.none(), required=False, empty_label="no profile", label="Compare with"
    )
    field_order = ("other", "prompts")

    def __init__(self, version: ProfileVersion, others: QuerySet[ProfileVersion], data: Any = None) -> None:
        super().__init__(version, others, data)
        of_model = others.select_related("profile").filter(profile__model_id=version.profile.model_id)
        field = self.fields["other"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = of_model.exclude(pk=version.pk)

    def make_params(self, values: dict[str, Any]) -> ComparisonParams:
        other = values["other"]
        return ComparisonParams(self.version.pk, other.pk if other else None, self.texts(values))
