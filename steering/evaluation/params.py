"""Parameters of evaluations. They are validated here, when the job is enqueued, and trusted while it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from steering.errors import EvaluationError
from steering.evaluation.runner import Sampling
from steering.spec.factor import MAX_FACTOR
from steering.spec.units import STRONG_PUSH

NEUTRAL_PROMPTS = (
    "Tell me a story.",
    "Describe an ordinary day.",
    "What happened this morning?",
    "Write a short letter to a friend.",
    "Tell me about a house.",
    "Describe a walk through a town.",
    "What do people talk about at dinner?",
    "Explain how to make tea.",
)


MAX_PROMPTS = 64
MAX_PROMPT_CHARS = 8_000
MAX_FACTORS = 24
MAX_WORDS = 200
MAX_TOKENS = 256
MAX_TEMPERATURE = 2.0
TARGETS = {"subtle": 0.1, "medium": 0.3, "strong": 0.6}  # nats
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Texts:
    """Prompts, and the sampling parameters of their answers."""

    prompts: tuple[str, ...] = NEUTRAL_PROMPTS
    max_tokens: int = 64
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        prompts = tuple(prompt.strip() for prompt in self.prompts)
        if not 1 <= len(prompts) <= MAX_PROMPTS or not all(prompts):
            raise EvaluationError(f"Give 1 to {MAX_PROMPTS} prompts, none of them empty; got {len(prompts)}.")
        if any(len(prompt) > MAX_PROMPT_CHARS for prompt in prompts):
            raise EvaluationError(f"A prompt may have at most {MAX_PROMPT_CHARS:,} characters.")
        _within("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _within("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _within("seed", self.seed, 0, 2**62)
        object.__setattr__(self, "prompts", prompts)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.max_tokens, self.temperature, self.seed)


@dataclass(frozen=True)
class SweepParams:
    """A sweep. ``factors`` multiply the version's strengths; ``words`` signal the concept and are counted."""

    version: int
    texts: Texts = field(default_factory=Texts)
    factors: tuple[float, ...] = FACTORS
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        factors = tuple(sorted(set(self.factors)))
        if not 1 <= len(factors) <= MAX_FACTORS:
            raise EvaluationError(f"Give 1 to {MAX_FACTORS} different strengths, got {len(factors)}.")
        for factor in factors:
            _within("strength", factor, -MAX_FACTOR, MAX_FACTOR)
        if len(self.words) > MAX_WORDS or any(len(word) > 100 for word in self.words):
            raise EvaluationError(f"The word list may have at most {MAX_WORDS} words of at most 100 characters.")
        object.__setattr__(self, "factors", factors)


@dataclass(frozen=True)
class CalibrationParams:
    """A calibration. ``target`` is in nats per token, ``push_cap`` a fraction of the residual norm."""

    version: int
    texts: Texts = field(default_factory=Texts)
    target: float = TARGETS["medium"]
    push_cap: float = STRONG_PUSH

    def __post_init__(self) -> None:
        _within("target", self.target, 1e-4, 20.0)
        _within("cap on the relative size", self.push_cap, 1e-3, 10.0)


@dataclass(frozen=True)
class ComparisonParams:
    """A comparison; ``other`` None compares with no steering."""

    version: int
    other: int | None = None
    texts: Texts = field(default_factory=Texts)


EvaluationParams = SweepParams | CalibrationParams | ComparisonParams


def to_json(params: EvaluationParams) -> dict[str, Any]:
    return asdict(params)


def read_texts(params: dict[str, Any]) -> Texts:
    return Texts(**{**params, "prompts": tuple(params["prompts"])})


def _within(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise EvaluationError(f"The {name} must be between {low:g} and {high:g}, got {value:g}.")


def read_numbers(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas or spaces."""
    parts: Sequence[str] = text.replace(",", " ").split()
    try:
        return tuple(float(part) for part in parts)
    except ValueError:
        raise EvaluationError(f"Expected numbers separated by commas, got {text[:200]!r}.") from None
