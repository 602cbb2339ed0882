"""Intervals, figures of answers with failures, the recommended strength, and the shipped prompts."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steering.corpora.prompt_sets import multiple_choice_questions, neutral_prompts
from steering.errors import EvaluationError
from steering.evaluation.arms import Point, differences_of, figures, point_from_json
from steering.evaluation.intervals import PromptSums, bca_interval, estimate, estimate_difference
from steering.evaluation.measures import AnswerRow, difference, figure, from_columns, harmonic_score, to_columns
from steering.evaluation.params import Controls, SweepParams, Texts
from steering.evaluation.recommendation import recommend
from steering.measuring.quantiles import activation_quantiles

NORMAL = NormalDist()

# Intervals


def literal_bca(values: list[float], resamples: int, seed: int) -> tuple[float, float]:
    """The interval of a mean, in plain Python, from the resamples that numpy draws."""
    n, point = len(values), fmean(values)
    draws = np.random.default_rng(seed).integers(0, n, (resamples, n)).tolist()
    means = sorted(fmean(values[place] for place in draw) for draw in draws)
    below = (sum(mean < point for mean in means) + sum(mean <= point for mean in means)) / (2 * resamples)
    z0 = NORMAL.inv_cdf(below)
    left_out = [fmean(values[:place] + values[place + 1 :]) for place in range(n)]
    centre = fmean(left_out)
    top = sum((centre - value) ** 3 for value in left_out)
    a = top / (6 * sum((centre - value) ** 2 for value in left_out) ** 1.5)
    ends = []
    for tail in (0.025, 0.975):
        z = z0 + NORMAL.inv_cdf(tail)
        place = NORMAL.cdf(z0 + z / (1 - a * z)) * (resamples - 1)
        low = int(place)
        high = min(low + 1, resamples - 1)
        ends.append(means[low] + (place - low) * (means[high] - means[low]))
    return ends[0], ends[1]


def sums(values: list[float], counts: list[float] | None = None) -> PromptSums:
    return PromptSums(np.array(values), np.array(counts or [1.0] * len(values)))


def test_the_interval_is_that_of_the_literal_formula() -> None:
    values = np.random.default_rng(4).exponential(size=23).tolist()
    assert bca_interval(sums(values).at, 23, resamples=500, seed=9) == pytest.approx(literal_bca(values, 500, 9))


def test_nineteen_of_twenty_intervals_hold_the_mean() -> None:
    rng = np.random.default_rng(7)
    found = [estimate(sums(rng.normal(3.0, 2.0, 40).tolist())) for _ in range(200)]
    held = sum(one.low <= 3.0 <= one.high for one in found)  # type: ignore[operator,union-attr]
    assert 180 <= held <= 200


def test_a_pooled_figure_weighs_prompts_by_their_tokens() -> None:
    found = estimate(sums([2.0, 30.0], [1.0, 10.0]))
    assert found is not None
    assert found.value == pytest.approx(32 / 11)


def test_paired_intervals_are_narrower_than_those_of_unrelated_prompts() -> None:
    base = np.random.default_rng(3).normal(0, 10, 60)
    paired = estimate_difference(sums((base + 1).tolist()), sums(base.tolist()))
    assert paired is not None
    assert (paired.value, paired.low, paired.high) == pytest.approx((1.0, 1.0, 1.0))


@pytest.mark.parametrize("values", [[], [math.nan]])
def test_nothing_to_measure_has_no_figure(values: list[float]) -> None:
    assert estimate(sums(values)) is None


def test_one_prompt_has_no_interval() -> None:
    found = estimate(sums([1.5]))
    assert found is not None
    assert found.to_json() == [1.5, None, None]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12))
def test_intervals_are_seeded_and_in_order(values: list[float]) -> None:
    one, again = estimate(sums(values)), estimate(sums(values))
    assert one is not None
    assert one == again
    assert one.low is not None
    assert one.high is not None
    assert min(values) - 1e-9 <= one.low <= one.high <= max(values) + 1e-9


# Figures


def row(prompt: int = 0, sample: int = 0, **values: Any) -> AnswerRow:
    known: dict[str, Any] = {"tokens": 10, "kl": 2.0, "base_tokens": 5, "kl_base": 0.5, "logprob": -10.0, "repeat": 0.1}
    return AnswerRow(prompt, sample, **{**known, **values})


def test_a_failed_answer_lowers_the_share_of_successes_and_stays_a_row() -> None:
    rows = [row(0), row(1, tokens=0, kl=None, logprob=None, repeat=None, error="Out of range.")]
    assert figure("success", rows).value == 0.5  # type: ignore[union-attr]
    assert figure("kl", rows).value == pytest.approx(0.2)  # type: ignore[union-attr]
    assert figure("perplexity", rows).value == pytest.approx(math.e)  # type: ignore[union-attr]
    assert differences_of(rows, [row(0), row(1)])["success"][0] == -0.5


def test_differences_are_over_prompts_that_both_sides_have() -> None:
    rows = [row(0, kl=5.0), row(1, tokens=0, kl=None)]
    assert difference("kl", rows, [row(0, kl=1.0), row(1, kl=100.0)]).value == pytest.approx(0.4)  # type: ignore[union-attr]


def test_rows_survive_as_columns_and_older_ones_have_defaults() -> None:
    rows = [row(0), row(1, error="x"), row(0, 1, concept=2.0)]
    assert from_columns(to_columns(rows)) == rows
    assert from_columns({"prompt": [3], "sample": [1]}) == [AnswerRow(3, 1)]
    assert from_columns({}) == []


@pytest.mark.parametrize(
    ("scores", "expected"),
    [((2.0, 2.0, 2.0), 2.0), ((2.0, 1.0, 1.0), 1.2), ((0.0, 2.0, 2.0), 0.0), ((None, 2.0, 2.0), None)],
)
def test_the_score_is_a_harmonic_mean(scores: tuple[float | None, ...], expected: float | None) -> None:
    concept, instruction, fluency = scores
    found = harmonic_score(row(concept=concept, instruction=instruction, fluency=fluency))
    assert found == (None if expected is None else pytest.approx(expected))


# The recommended strength


def point(factor: float | None, rows: list[AnswerRow]) -> Point:
    known = {name: None if found is None else found.value for name, found in figures(rows).items()}
    return Point(
        factor,
        [],
        0.0,
        {},
        known["kl"],
        known["perplexity"],
        known["repeat"],
        None,
        None,
        known["words"],
        None,
        None,
        0,
        sum(bool(one.error) for one in rows),
        [],
        answers=to_columns(rows),
    )


def points(*steered: tuple[float, dict[str, Any]], num_prompts: int = 8) -> list[Point]:
    base = [row(prompt, kl=0.0, kl_base=0.0) for prompt in range(num_prompts)]
    return [point(None, base)] + [
        point(factor, [row(prompt, **values) for prompt in range(num_prompts)]) for factor, values in steered
    ]


PARAMS = SweepParams(1, Texts(tuple(f"Prompt {n}." for n in range(8))))


def test_the_strongest_fluent_strength_is_recommended() -> None:
    weak, strong, broken = {"kl_base": 0.5}, {"kl_base": 1.0}, {"kl_base": 9.0, "logprob": -40.0}
    found = recommend(points((0.5, weak), (1.0, strong), (2.0, broken)), PARAMS)
    assert (found.factor, found.effect, found.is_found, found.is_split) == (1.0, "kl_base", True, True)
    assert found.value == pytest.approx([0.2, 0.2, 0.2])
    assert found.reason.startswith("1 × the strength has the largest effect (KL(base‖steered)) on the selection half")
    assert "of the strengths whose text stays fluent." in found.reason
    assert "On the report half it is 0.2 (95 % interval 0.2 to 0.2)." in found.reason


def test_listed_words_are_the_effect_where_there_are_some() -> None:
    rare, frequent = {"words": 1, "num_words": 10}, {"words": 3, "num_words": 10, "kl_base": 0.1}
    found = recommend(points((0.5, rare), (1.0, frequent)), replace(PARAMS, words=("rain",)))
    assert (found.factor, found.effect) == (1.0, "words")


def test_the_half_that_chooses_is_not_the_half_that_reports() -> None:
    """One strength is better on even prompts only, so it is chosen, and its figure is that of the odd ones."""
    lucky = [row(prompt, kl_base=5.0 if prompt % 2 == 0 else 0.0) for prompt in range(8)]
    steady = [row(prompt, kl_base=3.0) for prompt in range(8)]
    found = recommend([points()[0], point(0.5, steady), point(1.0, lucky)], PARAMS)
    assert found.factor == 1.0
    assert found.value == pytest.approx([0.0, 0.0, 0.0])


def test_a_judge_decides_where_there_is_one() -> None:
    good = {"concept": 2.0, "instruction": 2.0, "fluency": 1.0, "logprob": -90.0}
    bad = {"concept": 0.0, "instruction": 2.0, "fluency": 2.0, "kl_base": 9.0}
    found = recommend(points((0.5, good), (1.0, bad)), PARAMS)
    assert (found.factor, found.effect) == (0.5, "score")


@pytest.mark.parametrize(
    "values", [{"error": "Out of range."}, {"logprob": -90.0}, {"repeat": 0.9}, {"tokens": 0, "logprob": None}]
)
def test_broken_text_is_not_recommended(values: dict[str, Any]) -> None:
    found = recommend(points((1.0, values)), PARAMS)
    assert (found.is_found, found.factor) == (False, 1.0)
    assert found.reason.startswith("No strength qualifies")


def test_few_prompts_are_not_split() -> None:
    params = replace(PARAMS, texts=Texts(("One.", "Two.")))
    found = recommend(points((1.0, {"kl_base": 1.0}), num_prompts=2), params)
    assert (found.is_split, found.is_found) == (False, True)
    assert "too few for halves" in found.reason


def test_points_of_earlier_reports_are_read() -> None:
    old = dict.fromkeys(("factor", "push", "kl", "perplexity", "repeat", "distinct_1", "distinct_2"))
    old |= {"strengths": [], "pushes": {}, "words": None, "activation": None, "active": None}
    read = point_from_json({**old, "num_tokens": 0, "failures": 0, "samples": []})
    assert (read.rows, read.kl_base) == ([], None)


# Limits


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Texts(samples_per_prompt=0), "samples_per_prompt"),
        (lambda: Texts(samples_per_prompt=17), "samples_per_prompt"),
        (lambda: Controls(random_directions=-1), "random_directions"),
        (lambda: Controls(random_features=33), "random_features"),
        (lambda: Controls(system_prompt="x" * 8_001), "control_system_prompt"),
        (
            lambda: SweepParams(1, Texts(samples_per_prompt=16), (0.5,) * 1, (), Controls(random_directions=32)),
            "answers",
        ),
    ],
)
def test_what_is_too_much_is_refused_by_name(make, said: str) -> None:
    with pytest.raises(EvaluationError, match=said):
        make()


# Shipped prompts


def test_neutral_prompts_have_two_halves_of_the_same_domains() -> None:
    prompts = neutral_prompts()
    assert len(prompts) == len({prompt.prompt for prompt in prompts}) == 64
    assert [prompt.half for prompt in prompts] == ["selection", "report"] * 32, "as evaluations split them"
    domains = {half: Counter(p.domain for p in prompts if p.half == half) for half in ("selection", "report")}
    assert domains["selection"] == domains["report"]
    assert set(domains["report"].values()) == {4}


def test_questions_have_four_different_options_and_no_favourite_place() -> None:
    questions = multiple_choice_questions()
    assert len(questions) == len({question.question for question in questions}) == 64
    assert all(len(set(question.options)) == 4 for question in questions)
    assert set(Counter(question.answer for question in questions).values()) == {16}


# Quantiles of activations


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3_000))
def test_quantiles_of_a_histogram_are_those_of_the_activations_to_one_bin(seed: int, n: int) -> None:
    values = np.random.default_rng(seed).gamma(1.5, size=n)
    width = 2.0 ** math.ceil(math.log2(values.max() / 32))
    counts = np.histogram(values, bins=32, range=(0, 32 * width))[0].tolist()
    found = activation_quantiles({"width": width, "counts": counts}, float(values.max()))
    assert found is not None
    assert found.n == n
    for value, share in ((found.p99, 0.99), (found.p999, 0.999)):
        assert abs(value - np.quantile(values, share, method="inverted_cdf")) <= width
    assert found.p99 <= found.p999 <= values.max()


@pytest.mark.parametrize("stored", [None, {}, {"width": 1.0, "counts": [0] * 32}])
def test_features_that_never_fired_have_no_quantiles(stored: dict[str, Any] | None) -> None:
    assert activation_quantiles(stored) is None
