"""Directions and their figures, against formulas written out literally."""

from __future__ import annotations

import numpy as np
import pytest

from millm.directions import METHODS, RIDGE, SHRINKAGE, auc, cosine, direction, halves_cosine, held_out_auc
from steering.vectors.directions import METHODS as SERVER_METHODS
from steering.vectors.directions import direction as server_direction

Arrays = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def sides() -> Arrays:
    """24 pairs of 10 values, apart along one direction, with unequal variances."""
    random = np.random.default_rng(3)
    spread = np.linspace(0.2, 2.0, 10)
    negative = random.normal(size=(24, 10)) * spread
    positive = random.normal(size=(24, 10)) * spread + random.normal(size=10)
    return positive, negative


@pytest.mark.parametrize("method", SERVER_METHODS)
def test_the_server_s_methods_give_the_server_s_directions(sides: Arrays, method) -> None:
    assert np.allclose(direction(*sides, method), server_direction(*sides, method))


@pytest.mark.parametrize("method", METHODS)
def test_adding_a_direction_moves_one_mean_to_the_other_along_it(sides: Arrays, method) -> None:
    positive, negative = sides
    found = direction(positive, negative, method)
    along = found / np.linalg.norm(found)
    assert np.isclose(((negative + found).mean(axis=0) - positive.mean(axis=0)) @ along, 0.0)


def test_logistic_weights_are_where_gradient_descent_arrives(sides: Arrays) -> None:
    positive, negative = sides
    rows = np.concatenate([positive, negative])
    rows = rows - rows.mean(axis=0)
    rows = rows / np.sqrt(np.mean([row @ row for row in rows]))
    labels = np.array([1.0] * len(positive) + [0.0] * len(negative))
    weights, bias = np.zeros(10), 0.0
    for _ in range(20_000):
        error = 1 / (1 + np.exp(-(rows @ weights + bias))) - labels
        weights -= 2.0 * ((rows * error[:, None]).mean(axis=0) + RIDGE * weights)
        bias -= 2.0 * error.mean()
    assert cosine(direction(positive, negative, "logistic"), weights) == pytest.approx(1.0, abs=1e-9)


def test_mass_mean_solves_with_the_shrunk_covariance(sides: Arrays) -> None:
    positive, negative = sides
    centred = np.concatenate([positive - positive.mean(axis=0), negative - negative.mean(axis=0)])
    covariance = np.cov(centred.T, bias=True)
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * np.trace(covariance) / 10 * np.eye(10)
    expected = np.linalg.solve(shrunk, positive.mean(axis=0) - negative.mean(axis=0))
    assert cosine(direction(positive, negative, "mass_mean"), expected) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_more_values_than_pairs(method) -> None:
    random = np.random.default_rng(0)
    negative = random.normal(size=(4, 50))
    gap = random.normal(size=50) * 3
    found = direction(negative + gap, negative, method)
    assert cosine(found, gap) > 0.8


def test_the_auc_is_the_share_of_pairs_in_order() -> None:
    positive, negative = np.array([3.0, 1.0, 2.0]), np.array([0.0, 2.0])
    literal = [1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative]
    assert auc(positive, negative) == sum(literal) / len(literal)


def test_figures_tell_a_direction_from_noise() -> None:
    random = np.random.default_rng(1)
    noise = random.normal(size=(2, 40, 30))
    assert held_out_auc(noise[0] + 1.0, noise[1], "mean_difference") > 0.95
    assert halves_cosine(noise[0] + 1.0, noise[1], "mean_difference") > 0.8
    assert 0.3 < held_out_auc(noise[0], noise[1], "mean_difference") < 0.7
    assert abs(halves_cosine(noise[0], noise[1], "mean_difference")) < 0.4


def test_one_pair_has_a_direction_but_no_figures() -> None:
    one = np.ones((1, 3))
    assert direction(one * 2, one, "mass_mean").tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert np.isnan(held_out_auc(one * 2, one, "mean_difference"))
    assert np.isnan(halves_cosine(one * 2, one, "mean_difference"))


@pytest.mark.parametrize("method", METHODS)
def test_sides_that_do_not_differ_are_refused(method) -> None:
    rows = np.random.default_rng(0).normal(size=(4, 3))
    with pytest.raises(ValueError, match="do not differ"):
        direction(rows, rows, method)


def test_bad_arguments_are_named() -> None:
    rows = np.ones((4, 3))
    with pytest.raises(ValueError, match="`method` must be one of mean_difference, pca, logistic, mass_mean"):
        direction(rows, rows, "svm")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the same shape"):
        direction(rows, rows[:2], "pca")
    with pytest.raises(ValueError, match="opposite directions"):
        direction(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.zeros((2, 2)), "pca")
