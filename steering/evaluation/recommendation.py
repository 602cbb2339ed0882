"""Choose a strength on one half of the prompts, and report its figures on the other half."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steering.evaluation.arms import Point
from steering.evaluation.intervals import Estimate
from steering.evaluation.measures import AnswerRow, difference, figure
from steering.evaluation.params import SweepParams

MAX_PERPLEXITY_RATIO = 2.0
MIN_SUCCESS = 0.95
MAX_REPEAT_GAIN = 0.15
MIN_PROMPTS = 4  # fewer are not split into halves
EFFECTS = {
    "score": "the judge's score",
    "words": "the share of listed words",
    "kl_base": "KL(base‖steered)",
}


@dataclass(frozen=True)
class Recommendation:
    """The proposed strength. ``effect`` is the measure that chose it; ``factor`` 1 is used where none qualifies.

    ``value`` is [value, low, high] of the effect on the report half, ``gain`` the same of its difference from the
    unsteered answers. ``is_split`` is False where the prompts are too few for halves.
    """

    factor: float
    effect: str
    is_found: bool
    is_split: bool
    reason: str
    value: list[float | None] | None = None
    gain: list[float | None] | None = None


@dataclass(frozen=True)
class Halves:
    """The halves of the prompts: even ones for the selection, odd ones for the report. Few prompts are not split."""

    num_prompts: int

    @property
    def is_split(self) -> bool:
        return self.num_prompts >= MIN_PROMPTS

    def selection(self, point: Point) -> list[AnswerRow]:
        return [row for row in point.rows if not self.is_split or row.prompt % 2 == 0]

    def report(self, point: Point) -> list[AnswerRow]:
        return [row for row in point.rows if not self.is_split or row.prompt % 2]


def recommend(points: Sequence[Point], params: SweepParams) -> Recommendation:
    """Return the strength with the largest effect whose text stays fluent, both judged on the selection half.

    The effect is the judge's score if answers were judged, else the share of listed words, else KL(base || steered).
    Fluent means: at least 95 % of the answers succeed, their perplexity under the unsteered model is at most twice that
    of the unsteered answers, and their share of repeated 4-grams is at most 0.15 higher. With a judge, its score counts
    fluency itself, and only the share of successes is required.
    """
    base, steered = points[0], [point for point in points[1:] if point.factor]
    effect, split = _effect(points, params), Halves(len(params.texts.prompts))
    candidates = [
        (value.value, point)
        for point in steered
        if (value := figure(effect, split.selection(point))) is not None
        and _is_fluent(split.selection(point), split.selection(base), effect)
    ]
    if not candidates:
        reason = _why_none(effect) if steered else "No strength other than 0 was measured."
        return Recommendation(1.0, effect, is_found=False, is_split=split.is_split, reason=reason)
    best = max(candidates, key=lambda candidate: (candidate[0], -abs(candidate[1].factor or 0.0)))[1]
    value = figure(effect, split.report(best))
    gain = difference(effect, split.report(best), split.report(base))
    chosen = "on the selection half" if split.is_split else "on all prompts, which are too few for halves"
    among = ", of the strengths whose text stays fluent" if len(candidates) < len(steered) else ""
    first = f"{best.factor:g} × the strength has the largest effect ({EFFECTS[effect]}) {chosen}{among}."
    return Recommendation(
        best.factor or 0.0,
        effect,
        is_found=True,
        is_split=split.is_split,
        reason=" ".join([first, *_figures(value, gain, "On the report half" if split.is_split else "There")]),
        value=None if value is None else value.to_json(),
        gain=None if gain is None else gain.to_json(),
    )


def verdict(found: Mapping[str, Any]) -> str:
    """Return the headline of a stored recommendation: a strength, or why there is none."""
    if not found["is_found"]:
        return "No strength qualifies"
    _, low, high = found.get("gain") or (None, None, None)
    if low is not None and high is not None and low <= 0 <= high:
        return "No effect is shown"
    return f"Recommended: {found['factor']:g} × the strength"


def _effect(points: Sequence[Point], params: SweepParams) -> str:
    if any(figure("score", point.rows) is not None for point in points):
        return "score"
    return "words" if params.words else "kl_base"


def _is_fluent(rows: Sequence[AnswerRow], base: Sequence[AnswerRow], effect: str) -> bool:
    success = figure("success", rows)
    if success is None or success.value < MIN_SUCCESS:
        return False
    if effect == "score":
        return True
    perplexity, usual = figure("perplexity", rows), figure("perplexity", base)
    if perplexity is None or (usual is not None and perplexity.value > MAX_PERPLEXITY_RATIO * usual.value):
        return False
    repeats = difference("repeat", rows, base)
    return repeats is None or repeats.value <= MAX_REPEAT_GAIN


def _figures(value: Estimate | None, gain: Estimate | None, where: str) -> Iterator[str]:
    """Yield sentences about the effect, and about its difference from the unsteered answers."""
    if value is not None:
        yield f"{where} it is {_shown(value)}."
    if gain is not None:
        yield f"The difference from no steering is {_shown(gain)}, paired by prompt{_doubt(gain)}."


def _doubt(gain: Estimate) -> str:
    if gain.low is None or gain.high is None or not gain.low <= 0 <= gain.high:
        return ""
    return "; its interval includes 0, so an effect is not shown"


def _why_none(effect: str) -> str:
    if effect == "score":
        return "No strength qualifies: at each, more than 5 % of the answers failed."
    return (
        "No strength qualifies: at each, more than 5 % of the answers failed, or the text was too unlikely for the "
        "unsteered model (perplexity above twice that of its own answers), or it repeated itself."
    )


def _shown(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3g}"
    return f"{estimate.value:.3g} (95 % interval {estimate.low:.3g} to {estimate.high:.3g})"
