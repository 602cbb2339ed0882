"""What is measured of a feature, and the result. Plain data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from steering.errors import EvaluationError
from steering.spec.units import MAX_PUSH, STRONG_PUSH

VERSION = "2"
"""Changes whenever the same parameters would give other figures."""
PROMPTS = ("Tell me a story.", "Describe an ordinary day.", "What should I know about the world?")
OPENINGS = ("In my experience,", "I want to tell you about", "The first thing we saw was", "People often say that")
"""Neutral beginnings of texts, after which the next token is looked at for the output score."""
NUM_LENS_TOKENS = 20
FULL_ACTIVATION = 0.1
"""The mean activation, relative to the maximum, that counts as full: the maximum on every tenth token."""
MAX_TEXTS = 16
MAX_TEXT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class EffectRecipe:
    """Parameters of a measurement.

    The strength of ``add`` on all tokens is found at which KL(unsteered || steered) reaches ``target`` (nats per token,
    mean over the unsteered model's own answers to ``prompts``, teacher-forced), or at which the relative size reaches
    ``push_cap``.
    """

    target: float = 0.6
    push_cap: float = STRONG_PUSH
    prompts: tuple[str, ...] = PROMPTS
    max_tokens: int = 16
    num_samples: int = 3
    sample_tokens: int = 24
    temperature: float = 0.7
    seed: int = 7

    def __post_init__(self) -> None:
        if not (math.isfinite(self.target) and 0 < self.target <= 10):
            raise EvaluationError(f"`target` must be between 0 and 10 nats, got {self.target:g}.", param="target")
        if not (math.isfinite(self.push_cap) and 0 < self.push_cap <= MAX_PUSH):
            raise EvaluationError(
                f"`push_cap` must be between 0 and {MAX_PUSH:g}, got {self.push_cap:g}.", param="push_cap"
            )
        if not 1 <= len(self.prompts) <= MAX_TEXTS or not all(prompt.strip() for prompt in self.prompts):
            raise EvaluationError(f"Give 1 to {MAX_TEXTS} prompts, none of them empty.", param="prompts")
        for name in ("max_tokens", "sample_tokens"):
            if not 1 <= (value := getattr(self, name)) <= MAX_TEXT_TOKENS:
                raise EvaluationError(f"`{name}` must be between 1 and {MAX_TEXT_TOKENS}, got {value}.", param=name)

    @property
    def sample_prompts(self) -> tuple[str, ...]:
        return self.prompts[: self.num_samples]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EffectRecipe:
        return cls(**{**value, "prompts": tuple(value["prompts"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sample:
    """Answers to one prompt with the same seed: unsteered, and at the calibrated strength."""

    prompt: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class EffectResult:
    """The measured effect of a feature, or of a vector, which has no ``index`` and no figures of an SAE.

    ``strength`` is raw, ``kl`` the divergence measured there, in nats per token, and ``curve`` all (strength, kl) pairs
    that were tried. ``is_capped``: the target was not reached within the cap on the relative size.

    ``output_score`` and ``base_output_score`` are with and without steering, see :func:`output_score`.
    ``steered_activation`` and ``base_activation`` are the feature's mean activation on the tokens of the steered and of
    the unsteered samples, both read without steering, relative to its max activation. ``fluency`` is the perplexity of
    the steered samples under the unsteered model over that of the unsteered samples. Figures are None where steering
    was unstable, a sample was empty or the max activation is unknown.
    """

    index: int | None
    strength: float
    kl: float
    push: float
    is_capped: bool
    output_score: float | None = None
    base_output_score: float | None = None
    steered_activation: float | None = None
    base_activation: float | None = None
    fluency: float | None = None
    curve: tuple[tuple[float, float], ...] = ()
    samples: tuple[Sample, ...] = ()

    @property
    def steers_well(self) -> float:
        """How well it steers, 0 to 1: the larger one of two gains times the fluency, ``min(1, 1 / fluency)``.

        The gains are those of the output score, and of the activation as a share of :data:`FULL_ACTIVATION`. So a
        feature ranks high if, at the common divergence, it makes its own tokens likely or brings about texts on which
        it is active itself, where the unsteered model does neither, and if the unsteered model still finds the text
        plausible. The output score shows this only near the last layers, where the logit lens shows what a feature
        writes.
        """
        if not self.fluency:
            return 0.0
        activation = _gain(self.steered_activation, self.base_activation) / FULL_ACTIVATION
        return min(1.0, max(_gain(self.output_score, self.base_output_score), activation)) * min(
            1.0, 1.0 / self.fluency
        )


def _gain(steered: float | None, base: float | None) -> float:
    return 0.0 if steered is None or base is None else max(0.0, steered - base)


def output_score(logprob: float, rank: int, vocab_size: int) -> float:
    """Return the output score of a feature at one place: ``p (1 - r / |V|)``.

    ``p`` is the probability of the most likely one of the feature's ``NUM_LENS_TOKENS`` first tokens in the logit lens
    after amplification, and ``r`` its rank, 0 for the most likely token of all; ``logprob`` is ln p and ``rank`` starts
    at 1. From Arad, Mueller and Belinkov, "SAEs Are Good for Steering - If You Select the Right Features" (2025,
    arXiv:2505.20063), who amplify by ten maximal activations after one neutral text; here the strength is the
    calibrated one, and scores are averaged over :data:`OPENINGS`.
    """
    return math.exp(logprob) * (1 - (rank - 1) / vocab_size)
