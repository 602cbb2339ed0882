"""Which features separate two sets of texts: plain numbers, no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_COMPARED = 512  # features whose separation is computed


@dataclass(frozen=True, slots=True)
class SeparatingFeature:
    """``positive`` and ``negative`` are means over texts of each text's mean activation.

    ``separation`` is the chance that a positive text has more of it than a negative one, ties counted half: 1 and 0
    where it tells all texts apart, 0.5 where it tells nothing.
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
    """Up to ``count`` features, the best first: by how much of the residual the difference is
    (``|difference| |W_dec|``), times how surely it separates, ``|2 separation - 1|``.

    ``[texts, d_sae]`` mean activations of the two sets, and ``[d_sae]`` norms of the decoder's rows.
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
