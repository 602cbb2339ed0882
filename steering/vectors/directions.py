"""Compute directions from contrasting prompts, as pure functions in numpy.

``positive`` and ``negative`` are residuals ``[pairs, d]`` of the two prompts of each pair, at one site.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Method = Literal["mean_difference", "pca"]
METHODS: tuple[Method, ...] = ("mean_difference", "pca")


class NoDirectionError(ValueError):
    """The two sides do not differ, or their differences have no common direction."""


def direction(positive: Array, negative: Array, method: Method) -> Array:
    """Return a direction ``[d]``. Adding it moves the residual from the negative to the positive side, on average.

    Raise NoDirectionError if the sides are the same.
    """
    found = _DIRECTIONS[method](positive.astype(np.float64) - negative.astype(np.float64))
    if not np.isfinite(found).all():
        raise NoDirectionError("The captured residuals are not finite; the model's numbers overflow on these prompts.")
    if not found.any():
        raise NoDirectionError("The captured residuals of the two sides are identical.")
    return found


def mean_difference(differences: Array) -> Array:
    """Return the mean difference of the pairs (contrastive activation addition)."""
    mean: Array = differences.mean(axis=0)
    return mean


def principal_difference(differences: Array) -> Array:
    """Return the first principal direction of the differences (their first right singular vector).

    It points to the positive side. Its length is the mean of the differences along it.
    """
    _, sizes, directions = np.linalg.svd(differences, full_matrices=False)
    first: Array = directions[0]
    ahead = float((differences @ first).mean())
    if abs(ahead) <= 1e-9 * float(sizes[0]):
        raise NoDirectionError(
            "The differences of the pairs point in opposite directions, so they have no common positive side."
        )
    return ahead * first


_DIRECTIONS = {"mean_difference": mean_difference, "pca": principal_difference}
