"""Directions that separate two sides, and how far to trust them. Pure numpy.

``positive`` and ``negative`` are residuals ``[pairs, d]``: row ``i`` of both belongs to pair ``i``. Every direction
``v`` ``[d]`` is scaled so that adding it moves the mean of the negative side to the mean of the positive side along
``v``: with ``u = v / |v|``, ``|v| = (mean(positive) - mean(negative)) u``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Method = Literal["mean_difference", "pca", "logistic", "mass_mean"]
Fit = Callable[[Array, Array], Array]

METHODS: tuple[Method, ...] = get_args(Method)
RIDGE = 0.01  # of the logistic probe
SHRINKAGE = 0.1  # of the covariance of the mass-mean probe
NEWTON_STEPS = 50
TOLERANCE = 1e-10


def direction(positive: Array, negative: Array, method: Method) -> Array:
    """Return the direction ``[d]`` float64 of a method.

    - ``mean_difference``: the mean of the differences of the pairs (contrastive activation addition, Rimsky et al.
      2024). This is also the mass-mean direction without its covariance.
    - ``pca``: the first right singular vector of the differences (representation engineering, Zou et al. 2023).
    - ``logistic``: the weights of an L2-regularised logistic regression.
    - ``mass_mean``: the mean difference times the inverse of the covariance within the sides (Marks and Tegmark 2024,
      the probe for independent data), shrunk towards a multiple of the identity.

    Raise ValueError if the sides do not differ, or if they differ in no common direction.
    """
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}, got {method!r}.")
    positive, negative = np.asarray(positive, np.float64), np.asarray(negative, np.float64)
    if positive.shape != negative.shape or positive.ndim != 2 or not len(positive):
        raise ValueError(
            f"`positive` and `negative` must have the same shape [pairs, d], got {positive.shape} and {negative.shape}."
        )
    if np.array_equal(positive, negative):
        raise ValueError("The two sides do not differ, so there is no direction from one to the other.")
    gap = positive.mean(axis=0) - negative.mean(axis=0)
    along = _FITS[method](positive, negative)
    along = along / (np.linalg.norm(along) or 1.0)
    ahead = float(gap @ along)
    if abs(ahead) <= 1e-9 * float(np.linalg.norm(positive - negative)):
        raise ValueError("The differences of the pairs point in opposite directions and have no common positive side.")
    found: Array = ahead * along
    return found


def _mean_difference(positive: Array, negative: Array) -> Array:
    found: Array = (positive - negative).mean(axis=0)
    return found


def _principal(positive: Array, negative: Array) -> Array:
    found: Array = np.linalg.svd(positive - negative, full_matrices=False)[2][0]
    return found


def _logistic(positive: Array, negative: Array) -> Array:
    """Minimise ``mean(log(1 + exp(-y (x w + b)))) + RIDGE / 2 |w|²`` by Newton's method.

    ``x`` is centred and scaled to a mean squared length of 1, so that the ridge means the same for every model. The
    optimum lies in the span of the rows, which has at most ``2 pairs`` dimensions; the steps are taken there.
    """
    rows = np.concatenate([positive, negative])
    rows = rows - rows.mean(axis=0)
    rows = rows / (np.sqrt((rows**2).sum(axis=1).mean()) or 1.0)
    u, sizes, basis = np.linalg.svd(rows, full_matrices=False)
    design = np.column_stack([u * sizes, np.ones(len(rows))])  # the last column is the bias
    is_positive = np.arange(len(rows)) < len(positive)
    ridge = np.append(np.full(len(sizes), RIDGE), 1e-9)
    weights = np.zeros(design.shape[1])
    for _ in range(NEWTON_STEPS):
        chance = 1.0 / (1.0 + np.exp(-(design @ weights)))
        slope = design.T @ (chance - is_positive) / len(rows) + ridge * weights
        curvature = (design.T * (chance * (1.0 - chance))) @ design / len(rows) + np.diag(ridge)
        step = np.linalg.solve(curvature, slope)
        weights = weights - step
        if np.abs(step).max() < TOLERANCE:
            break
    found: Array = weights[:-1] @ basis
    return found


def _mass_mean(positive: Array, negative: Array) -> Array:
    """Solve ``C v = gap`` for ``C = (1 - s) S + s trace(S) / d I``, with ``S`` the covariance within the sides.

    ``S`` has at most ``2 pairs`` dimensions, so ``C`` is inverted on the singular vectors of the centred rows; on all
    other directions it is a multiple of the identity.
    """
    gap = positive.mean(axis=0) - negative.mean(axis=0)
    rows = np.concatenate([positive - positive.mean(axis=0), negative - negative.mean(axis=0)])
    _, sizes, basis = np.linalg.svd(rows, full_matrices=False)
    variances = sizes**2 / len(rows)
    floor = SHRINKAGE * float(variances.sum()) / rows.shape[1]
    if floor == 0.0:  # a single pair: there is no spread
        return _mean_difference(positive, negative)
    inverse = 1.0 / ((1.0 - SHRINKAGE) * variances + floor) - 1.0 / floor
    found: Array = gap / floor + (inverse * (basis @ gap)) @ basis
    return found


_FITS: dict[Method, Fit] = {
    "mean_difference": _mean_difference,
    "pca": _principal,
    "logistic": _logistic,
    "mass_mean": _mass_mean,
}


def auc(positive: Array, negative: Array) -> float:
    """Return the area under the ROC curve of scores: the probability that a positive score exceeds a negative one.

    Ties count half (the Mann-Whitney statistic).
    """
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(below.sum() / (2 * len(positive) * len(negative)))


def held_out_auc(positive: Array, negative: Array, method: Method, *, folds: int = 5, seed: int = 0) -> float:
    """Return the AUC of projections of held-out pairs, averaged over folds (cross-validation by pairs).

    Both prompts of a pair are always on the same side of a split. NaN with fewer than two pairs.
    """
    if len(positive) < 2:
        return float("nan")
    order = np.random.default_rng(seed).permutation(len(positive))
    scores = []
    for held_out in np.array_split(order, min(folds, len(order))):
        fitted = np.setdiff1d(order, held_out)
        along = direction(positive[fitted], negative[fitted], method)
        scores.append(auc(positive[held_out] @ along, negative[held_out] @ along) * len(held_out))
    return float(sum(scores) / len(order))


def halves_cosine(positive: Array, negative: Array, method: Method, *, splits: int = 10, seed: int = 0) -> float:
    """Return the cosine between the directions of two random halves of the pairs, averaged over ``splits`` splits.

    A value near 1 means that other pairs of the same kind would give the same direction; near 0, that the direction
    belongs to these pairs only. NaN with fewer than two pairs.
    """
    if len(positive) < 2:
        return float("nan")
    random = np.random.default_rng(seed)
    found = []
    for _ in range(splits):
        first, second = np.array_split(random.permutation(len(positive)), 2)
        found.append(
            cosine(
                direction(positive[first], negative[first], method),
                direction(positive[second], negative[second], method),
            )
        )
    return float(np.mean(found))


def cosine(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Return the cosine of the angle between two directions ``[d]``."""
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
