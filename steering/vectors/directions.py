"""Directions from contrasted prompts: pure functions of what was read, in numpy.

``positive`` and ``negative`` are ``[pairs, d]``: what was read of the two prompts of each pair, at one site.
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
    """The two sides do not differ, or not in a way that has a direction."""


def direction(positive: Array, negative: Array, method: Method) -> Array:
    """``[d]``; adding it once moves the residual, on average, from the negative side to the positive one.

    NoDirectionError where the sides are the same.
    """
    found = _DIRECTIONS[method](positive.astype(np.float64) - negative.astype(np.float64))
    if not np.isfinite(found).all():
        raise NoDirectionError("What was read is not finite; the model's numbers overflow on these prompts.")
    if not found.any():
        raise NoDirectionError("The prompts of the two sides do not differ where they were read.")
    return found


def mean_difference(differences: Array) -> Array:
    """Contrastive activation addition: the mean of the pairs' differences."""
    mean: Array = differences.mean(axis=0)
    return mean


def principal_difference(differences: Array) -> Array:
    """The direction along which the differences are largest (their first right singular vector).

    It points to the positive side, and is as long as the differences are along it on average.
    """
    _, sizes, directions = np.linalg.svd(differences, full_matrices=False)
    first: Array = directions[0]
    ahead = float((differences @ first).mean())
    if abs(ahead) <= 1e-9 * float(sizes[0]):
        raise NoDirectionError("The pairs differ in opposite directions, so that none of them is the positive one.")
    return ahead * first


_DIRECTIONS = {"mean_difference": mean_difference, "pca": principal_difference}
