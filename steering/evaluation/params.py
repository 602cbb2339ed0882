"""Parameters of evaluations. They are validated here, when the job is enqueued, and trusted while it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from steering.corpora.prompt_sets import neutral_prompts
from steering.errors import EvaluationError
from steering.evaluation.runner import Sampling, UnpublishedEdits
from steering.spec.factor import MAX_FACTOR
from steering.spec.units import STRONG_PUSH

NEUTRAL_PROMPTS = tuple(prompt.prompt for prompt in neutral_prompts())
MAX_PROMPTS = 256
MAX_SAMPLES = 16  # per prompt
MAX_ANSWERS = 20_000  # of one job
MAX_CONTROLS = 32
MAX_SYSTEM_PROMPT_CHARS = 8_000
MAX_PROMPT_CHARS = 8_000
MAX_FACTORS = 24
MAX_WORDS = 200
MAX_TOKENS = 256
MAX_TEMPERATURE = 2.0
TARGETS = {"subtle": 0.1, "medium": 0.3, "strong": 0.6}  # nats
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise EvaluationError(f"The {name} must be between {low:g} and {high:g}, got {value:g}.")


@dataclass(frozen=True)
class Texts:
    """Prompts, and the sampling parameters of their answers. Each prompt is answered ``samples_per_prompt`` times."""

    prompts: tuple[str, ...] = NEUTRAL_PROMPTS
    max_tokens: int = 64
    temperature: float = 1.0
    seed: int = 0
    samples_per_prompt: int = 1

    def __post_init__(self) -> None:
        prompts = tuple(prompt.strip() for prompt in self.prompts)
        if not 1 <= len(prompts) <= MAX_PROMPTS or not all(prompts):
            raise EvaluationError(f"Give 1 to {MAX_PROMPTS} prompts, none of them empty; got {len(prompts)}.")
        if any(len(prompt) > MAX_PROMPT_CHARS for prompt in prompts):
            raise EvaluationError(f"A prompt may have at most {MAX_PROMPT_CHARS:,} characters.")
        _within("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _within("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _within("seed", self.seed, 0, 2**62)
        _within("samples_per_prompt", self.samples_per_prompt, 1, MAX_SAMPLES)
        object.__setattr__(self, "prompts", prompts)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.max_tokens, self.temperature, self.seed)

    @property
    def numbered_prompts(self) -> tuple[str, ...]:
        """The prompt of each answer: all prompts, once for each sample. An answer's place sets its seed."""
        return self.prompts * self.samples_per_prompt


@dataclass(frozen=True)
class Controls:
    """What a sweep measures beside the profile, at the same strength and on the same prompts and seeds.

    ``random_directions`` and ``random_features`` are numbers of each; ``system_prompt`` has the profile's goal in
    words, empty for none. ``off_target`` asks multiple-choice questions with and without the profile.
    """

    random_directions: int = 0
    random_features: int = 0
    system_prompt: str = ""
    off_target: bool = False

    def __post_init__(self) -> None:
        _within("random_directions", self.random_directions, 0, MAX_CONTROLS)
        _within("random_features", self.random_features, 0, MAX_CONTROLS)
        if len(self.system_prompt) > MAX_SYSTEM_PROMPT_CHARS:
            raise EvaluationError(f"control_system_prompt may have at most {MAX_SYSTEM_PROMPT_CHARS:,} characters.")
        object.__setattr__(self, "system_prompt", self.system_prompt.strip())

    @property
    def num_arms(self) -> int:
        return self.random_directions + self.random_features + bool(self.system_prompt)


DEFAULT_CONTROLS = Controls(random_directions=8, random_features=1, off_target=True)
"""The controls of forms, commands and the API, unless others are given."""


@dataclass(frozen=True)
class Scale:
    """How much an evaluation measures, where it is not said."""

    prompts: tuple[str, ...] = NEUTRAL_PROMPTS
    max_tokens: int = Texts.max_tokens
    factors: tuple[float, ...] = FACTORS
    controls: Controls = DEFAULT_CONTROLS


QUICK = Scale(NEUTRAL_PROMPTS[:8], 24, (0.5, 1.0), Controls(random_directions=2, random_features=1))
"""A first look: a prompt of each half from four domains, short answers, and few controls. Its intervals are wide."""


ENDPOINT = "endpoint"
"""In place of a model's name: the endpoint of MILLM_JUDGE_BASE_URL."""


@dataclass(frozen=True)
class JudgeParams:
    """Who judges answers, and for which ``concept``: a model of this server by name, or ENDPOINT."""

    model: str
    concept: str

    def __post_init__(self) -> None:
        if not self.model or not self.concept.strip() or len(self.concept) > 1_000:
            raise EvaluationError("A judge needs a model, and a `concept` of 1 to 1,000 characters.")


def judge_params(model: str, concept: str) -> JudgeParams | None:
    """Return the judge, or None if neither is given."""
    return JudgeParams(model.strip(), concept.strip()) if model.strip() or concept.strip() else None


@dataclass(frozen=True)
class SweepParams:
    """A sweep. ``factors`` multiply the version's strengths; ``words`` signal the concept and are counted."""

    version: int | UnpublishedEdits
    texts: Texts = field(default_factory=Texts)
    factors: tuple[float, ...] = FACTORS
    words: tuple[str, ...] = ()
    controls: Controls = field(default_factory=Controls)
    judge: JudgeParams | None = None

    def __post_init__(self) -> None:
        factors = tuple(sorted(set(self.factors)))
        if not 1 <= len(factors) <= MAX_FACTORS:
            raise EvaluationError(f"Give 1 to {MAX_FACTORS} different strengths, got {len(factors)}.")
        for factor in factors:
            _within("strength", factor, -MAX_FACTOR, MAX_FACTOR)
        if len(self.words) > MAX_WORDS or any(len(word) > 100 for word in self.words):
            raise EvaluationError(f"The word list may have at most {MAX_WORDS} words of at most 100 characters.")
        object.__setattr__(self, "factors", factors)
        num_answers = len(self.texts.numbered_prompts) * (1 + len(factors) + self.controls.num_arms)
        if num_answers > MAX_ANSWERS:
            raise EvaluationError(
                f"The sweep would generate {num_answers:,} answers; the limit is {MAX_ANSWERS:,}. "
                "Give fewer prompts, samples, strengths or controls."
            )


@dataclass(frozen=True)
class CalibrationParams:
    """A calibration. ``target`` is in nats per token, ``push_cap`` a fraction of the residual norm."""

    version: int | UnpublishedEdits
    texts: Texts = field(default_factory=Texts)
    target: float = TARGETS["medium"]
    push_cap: float = STRONG_PUSH

    def __post_init__(self) -> None:
        _within("target", self.target, 1e-4, 20.0)
        _within("cap on the relative size", self.push_cap, 1e-3, 10.0)


@dataclass(frozen=True)
class ComparisonParams:
    """A comparison; ``other`` None compares with no steering."""

    version: int | UnpublishedEdits
    other: int | None = None
    texts: Texts = field(default_factory=Texts)


@dataclass(frozen=True)
class HeadlineParams:
    """The headline KL alone, which has a fixed recipe."""

    version: int | UnpublishedEdits


EvaluationParams = SweepParams | CalibrationParams | ComparisonParams | HeadlineParams


def to_json(params: EvaluationParams) -> dict[str, Any]:
    return asdict(params)


def read_texts(params: dict[str, Any]) -> Texts:
    return Texts(**{**params, "prompts": tuple(params["prompts"])})


def read_numbers(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas or spaces."""
    parts: Sequence[str] = text.replace(",", " ").split()
    try:
        return tuple(float(part) for part in parts)
    except ValueError:
        raise EvaluationError(f"Expected numbers separated by commas, got {text[:200]!r}.") from None
