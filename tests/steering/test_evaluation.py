"""The parts of evaluations that need no engine: measures, the search for a strength, multiples of strengths, limits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.interventions import Site
from steering.errors import EvaluationError
from steering.evaluation.calibration import MAX_STEPS, TOLERANCE, search
from steering.evaluation.params import CalibrationParams, SweepParams, Texts, read_numbers
from steering.evaluation.text_measures import distinct, mean, perplexity, repeat_rate, word_rate
from steering.spec.edit import EditSpec, SiteTarget, VectorTarget
from steering.spec.factor import MAX_FACTOR, combined_pushes, has_strength, largest_factor, with_factor
from steering.spec.units import Scales


def test_perplexity_is_the_exponential_of_the_mean() -> None:
    assert perplexity([math.log(0.5), math.log(0.125)]) == pytest.approx(4.0)
    assert perplexity([]) is None
    assert perplexity([-math.inf]) == math.inf


def test_repeats_are_counted_by_four_tokens() -> None:
    assert repeat_rate([1, 2, 3, 4]) == 0
    assert repeat_rate([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 - 4 / 5)
    assert repeat_rate([7] * 10) == pytest.approx(1 - 1 / 7)
    assert repeat_rate([1, 2, 3]) is None


def test_distinct_looks_at_all_texts_together() -> None:
    assert distinct([[1, 2], [1, 2]], 1) == 0.5
    assert distinct([[1, 2, 3], [2, 3, 4]], 2) == 0.75
    assert distinct([[], [1]], 2) is None


def test_words_are_whole_and_case_does_not_matter() -> None:
    assert word_rate(["Rain, rain! The train."], ["rain"]) == 0.5
    assert word_rate(["Ström, it’s STRÖM"], ["ström", "IT’S"]) == 1.0
    assert word_rate(["…"], ["rain"]) is None


def test_means_leave_out_what_is_not_known() -> None:
    assert mean([1.0, None, 3.0]) == 2.0
    assert mean([None]) is None


@given(st.lists(st.integers(0, 5), max_size=40))
def test_measures_are_shares(tokens: list[int]) -> None:
    values = [repeat_rate(tokens), distinct([tokens], 1), distinct([tokens], 2)]
    assert all(value is None or 0 <= value <= 1 for value in values)


# Multiples


def edit(operation: str = "add", strength: float = 2.0, **values: object) -> EditSpec:
    scales = Scales(direction_norm=1.0, reference_norm=10.0)
    return EditSpec(VectorTarget(Site(1), (1.0, 0.0), scales), operation, strength, "raw", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "strength", "factor", "expected"),
    [
        ("add", 2.0, 0.5, 1.0),
        ("add", -2.0, 3.0, -6.0),
        ("clamp", 4.0, 0.25, 1.0),
        ("at_most", 4.0, 2.0, 8.0),
        ("scale", 3.0, 0.5, 2.0),
        ("orthogonal", 0.0, 0.5, 0.5),
        ("ablate", 1.0, 9.0, 1.0),
    ],
)
def test_a_factor_means_a_multiple_of_the_strength(
    operation: str, strength: float, factor: float, expected: float
) -> None:
    assert with_factor(edit(operation, strength), factor).strength == expected


def test_both_ends_of_a_cap_are_multiplied() -> None:
    changed = with_factor(edit("projection_cap", 2.0, lower=-1.0), 3.0)
    assert (changed.strength, changed.lower) == (6.0, -3.0)


def test_what_has_no_strength_is_told_apart() -> None:
    assert has_strength([edit()])
    assert not has_strength([EditSpec(SiteTarget(Site(1)), "norm_preserving"), edit("ablate")])


@given(st.floats(0.01, 100), st.floats(0.01, 5))
def test_the_cap_on_the_push_is_kept_and_used_up(strength: float, cap: float) -> None:
    """A push of strength / 10 at the factor 1."""
    factor = largest_factor([edit("add", strength)], cap)
    assert factor == pytest.approx(min(MAX_FACTOR, 10 * cap / strength), rel=1e-6)
    assert with_factor(edit("add", strength), factor).push <= cap * (1 + 1e-9)  # type: ignore[operator]


def test_pushes_add_up_at_a_site() -> None:
    other = EditSpec(
        VectorTarget(Site(2), (1.0, 0.0), Scales(direction_norm=1.0, reference_norm=4.0)), "add", 2.0, "raw"
    )
    unknown = EditSpec(VectorTarget(Site(2), (1.0, 0.0), Scales()), "add", 9.0, "raw")
    assert combined_pushes([other, edit("add", 2.0), unknown, edit("add", -1.0)]) == {
        Site(1): pytest.approx(0.3),
        Site(2): 0.5,
    }
    assert combined_pushes([unknown]) == {}


# The search


@given(
    scale=st.floats(1e-3, 10),
    power=st.floats(0.5, 3),
    target=st.floats(0.01, 2),
    limit=st.floats(0.1, 64),
)
def test_search_meets_the_target_or_says_that_the_cap_is_below_it(
    scale: float, power: float, target: float, limit: float
) -> None:
    asked: list[float] = []

    def kl_at(factor: float) -> float:
        asked.append(factor)
        return scale * float(factor**power)

    found = search(kl_at, target, limit)
    assert 0 < found.factor <= limit
    assert all(0 < factor <= limit for factor in asked)
    assert found.kl == kl_at(found.factor)
    if scale * limit**power < target * (1 - TOLERANCE):
        assert (found.is_met, found.is_capped, found.factor) == (False, True, limit)
    else:
        assert found.is_met
        assert abs(found.kl - target) <= TOLERANCE * target
    assert len(asked) <= 2 * MAX_STEPS


def test_a_strength_that_breaks_the_model_counts_as_too_much() -> None:
    found = search(lambda factor: None if factor > 0.3 else factor, 0.2, 64)
    assert found.is_met
    assert found.kl == pytest.approx(0.2, rel=TOLERANCE)


def test_a_jump_over_the_target_is_not_called_met() -> None:
    found = search(lambda factor: 0.0 if factor < 0.5 else 9.0, 0.3, 64)
    assert not found.is_met
    assert not found.is_capped


def test_a_model_that_always_breaks_has_no_proposal_that_is_met() -> None:
    found = search(lambda factor: None, 0.3, 64)
    assert (found.is_met, found.kl) == (False, None)


# Limits


@pytest.mark.parametrize(
    "make",
    [
        lambda: Texts(prompts=()),
        lambda: Texts(prompts=("  ",)),
        lambda: Texts(prompts=("x",) * 257),
        lambda: Texts(prompts=("x" * 8_001,)),
        lambda: Texts(max_tokens=0),
        lambda: Texts(max_tokens=100_000),
        lambda: Texts(temperature=math.nan),
        lambda: Texts(seed=-1),
        lambda: SweepParams(1, factors=()),
        lambda: SweepParams(1, factors=(math.inf,)),
        lambda: SweepParams(1, factors=(1e9,)),
        lambda: SweepParams(1, factors=tuple(range(25))),
        lambda: SweepParams(1, words=("x",) * 201),
        lambda: CalibrationParams(1, target=0.0),
        lambda: CalibrationParams(1, target=math.nan),
        lambda: CalibrationParams(1, push_cap=-1.0),
        lambda: read_numbers("0.5; two"),
        lambda: SweepParams(1, factors=read_numbers("nan")),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_a_sentence(make) -> None:
    with pytest.raises(EvaluationError, match=r"\.$"):
        make()


def test_strengths_are_sorted_and_named_once() -> None:
    assert SweepParams(1, factors=read_numbers("2, 0.5 2")).factors == (0.5, 2.0)
