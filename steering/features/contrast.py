"""Find the features that separate two sets of texts, from mean activations. Does not use the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_COMPARED = 512  # the separation is computed for this many features


@dataclass(frozen=True, slots=True)
class SeparatingFeature:
    """A feature with its mean activation over the texts of each set.

    ``separation`` is the probability that a positive text has a larger mean activation than a negative one (AUROC; ties
    count half). 1 and 0 mean perfect separation, 0.5 none.
    """

    index: int
    positive: float
    negative: float
    separation: float

    @property
    def difference(self) -> float:
        return self.positive - self.negative


def separating_features(
    positive: NDArray[np.float32], negative: NDArray[np.float32], norms: NDArray[np.float32], count: int
) -> tuple[SeparatingFeature, ...]:
    """Return up to ``count`` features, ordered by ``|difference| |W_dec| |2 separation - 1|``, the largest first.

    ``positive`` and ``negative`` are mean activations ``[texts, d_sae]``, ``norms`` the norms of the decoder rows
    ``[d_sae]``.
    """
    import numpy as np

    means = positive.mean(axis=0, dtype=np.float64), negative.mean(axis=0, dtype=np.float64)
    weight = np.abs(means[0] - means[1]) * norms
    compared = np.argsort(-weight, kind="stable")[:MAX_COMPARED]
    found = [
        SeparatingFeature(
            int(index),
            float(means[0][index]),
            float(means[1][index]),
            _separation(positive[:, index], negative[:, index]),
        )
        for index in compared
        if weight[index] > 0
    ]
    scores = {one.index: float(weight[one.index]) * abs(2 * one.separation - 1) for one in found}
    best = sorted((one for one in found if scores[one.index] > 0), key=lambda one: (-scores[one.index], one.index))
    return tuple(best[:count])


def _separation(positive: NDArray[np.float32], negative: NDArray[np.float32]) -> float:
    import numpy as np

    sign = np.sign(positive[:, None].astype(np.float64) - negative[None, :])
    return float((sign.mean() + 1) / 2)
