"""Steering profiles: which features bring out a concept, and how strongly to add them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tools.demo_model.concept import Concept, LabelledStory
from tools.demo_model.effect import Bench, Effect, SamplingPlan, compare
from tools.demo_model.language_model import Report
from tools.demo_model.residual import read_residuals
from tools.demo_model.sae import TopKSae

FEATURE_COUNTS = (2, 3, 6, 12)
AUDITIONED = 8  # features tried alone, those with the largest contrast
AUDITION_PUSH = 0.4
CAST_SIZES = (2, 3)
PUSHES = (0.35, 0.375, 0.4, 0.425, 0.45, 0.475, 0.5, 0.525)
MAX_PERPLEXITY_RATIO = 1.9


@dataclass(frozen=True, slots=True)
class Edit:
    """Add `strength` maximal activations of a feature to the residual."""

    feature: int
    strength: float
    phase: str = "both"
    operation: str = "add"
    unit: str = "max_act"


@dataclass(frozen=True, slots=True)
class Trial:
    """Edits and their effect."""

    edits: tuple[Edit, ...]
    effect: Effect


@dataclass(frozen=True, slots=True)
class Profile:
    """A named set of edits, with its measured effect and push (norm of the added vector / mean norm)."""

    concept: Concept
    edits: tuple[Edit, ...]
    effect: Effect
    push: float


@dataclass(frozen=True, slots=True)
class Dictionary:
    """An SAE with its features' largest activations [d_sae] and the layer's mean residual norm."""

    sae: TopKSae
    max_activation: Tensor
    mean_resid_norm: float

    def delta(self, edits: Sequence[Edit]) -> Tensor:
        """Return the vector [d_in] that the edits add together."""
        rows = [edit.strength * self.max_activation[edit.feature] * self.sae.W_dec[edit.feature] for edit in edits]
        return torch.stack(rows).sum(0)

    def push(self, edits: Sequence[Edit]) -> float:
        """Return the norm of the edits' vector as a share of the mean residual norm."""
        return float(self.delta(edits).norm()) / self.mean_resid_norm

    def scaled(self, weights: Mapping[int, float], push: float) -> tuple[Edit, ...]:
        """Return edits in proportion to raw coefficients `weights`, scaled to `push`; strengths are rounded to two
        digits."""
        raw = torch.stack([weight * self.sae.W_dec[feature] for feature, weight in weights.items()]).sum(0)
        factor = push * self.mean_resid_norm / float(raw.norm())
        return tuple(
            Edit(feature, max(0.01, round(factor * weight / float(self.max_activation[feature]), 2)))
            for feature, weight in weights.items()
        )


def mean_activations(bench: Bench, sae: TopKSae, stories: Sequence[LabelledStory]) -> dict[str, Tensor]:
    """Return for every label and for "all" the mean activations [d_sae] over the ordinary tokens of its stories."""
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    for story in stories:
        ids = torch.tensor([bench.tokenizer(story.text, add_special_tokens=False)["input_ids"]])
        x = read_residuals(bench.model, bench.layer, ids)[~torch.isin(ids, bench.special)]
        a = sae.encode(x).sum(0)
        for label in (*story.labels, "all"):
            sums[label] = sums.get(label, torch.zeros_like(a)) + a
            counts[label] = counts.get(label, 0) + len(x)
    return {label: total / counts[label] for label, total in sums.items()}


class ProfileDesigner:
    """Designs profiles by contrast and trial.

    Candidates are the features whose mean activation in stories with the concept exceeds their overall mean the most.
    They are added in proportion to that difference, or, for concepts whose largest differences lie on features that
    change little (punctuation of such stories), in equal parts those that bring out the most words when added alone.
    How many of them, and how strongly, is decided by their effect on samples.
    """

    def __init__(self, bench: Bench, dictionary: Dictionary, plan: SamplingPlan) -> None:
        self.bench, self.dictionary, self.plan = bench, dictionary, plan
        self.trial_plan = replace(plan, seed=plan.seed + 1)  # what is chosen is measured on other samples
        self.base = {p: bench.baseline(p) for p in (plan, self.trial_plan)}

    def design(self, concept: Concept, context: Mapping[str, Tensor], report: Report) -> Profile:
        """Return the edits with the best effect over all mixtures and PUSHES. ``context`` holds mean activations
        [d_sae]."""
        contrast = context[concept.label] - context["all"]
        alone = {
            feature: self._try({feature: 1.0}, AUDITION_PUSH, concept) for feature in strongest(contrast, AUDITIONED)
        }
        best = sorted(alone, key=lambda feature: score(alone[feature].effect), reverse=True)
        mixtures = [strongest(contrast, count) for count in FEATURE_COUNTS]
        mixtures += [dict.fromkeys(best[:size], 1.0) for size in CAST_SIZES]
        trials = [self._try(weights, push, concept) for weights in mixtures for push in PUSHES]
        edits = max(trials, key=lambda trial: score(trial.effect)).edits
        profile = Profile(concept, edits, self.measure(edits, concept, self.plan), self.dictionary.push(edits))
        report(
            f"{concept.name}: features {[edit.feature for edit in edits]}, {profile.effect.ratio:.1f} times the words, "
            f"{profile.effect.perplexity_ratio:.2f} times the perplexity, push {profile.push:.2f}"
        )
        return profile

    def measure(self, edits: tuple[Edit, ...], concept: Concept, plan: SamplingPlan) -> Effect:
        """Return the effect of the edits on the plan's samples."""
        samples = self.bench.sample(plan, self.dictionary.delta(edits))
        return compare(self.bench, self.base[plan], samples, concept.words)

    def _try(self, weights: Mapping[int, float], push: float, concept: Concept) -> Trial:
        edits = self.dictionary.scaled(weights, push)
        return Trial(edits, self.measure(edits, concept, self.trial_plan))


def strongest(contrast: Tensor, count: int) -> dict[int, float]:
    """Return the `count` features with the largest contrast [d_sae], with raw coefficients proportional to it."""
    values, features = contrast.topk(min(count, contrast.shape[0]))
    return {int(i): float(v) for i, v in zip(features, values, strict=True) if v > 0}


def score(effect: Effect) -> float:
    """Return the share of words in the steered text if it is fluent; else a negative number, lower for less fluent
    text."""
    return effect.share if effect.perplexity_ratio <= MAX_PERPLEXITY_RATIO else -effect.perplexity_ratio
