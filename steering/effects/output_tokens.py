"""Tokens that steering with a feature makes likely: what it writes, where its examples show what it reads.

This is TokenChange of Gur-Arieh, Mayan, Agassy, Geiger and Geva, "Enhancing Automated Interpretability with
Output-Centric Feature Descriptions" (2025, arXiv:2501.08319), measured as parts of a divergence instead of changes of
logits, because a part shows only tokens that really become likely.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

PUSH = 0.4
"""The relative size of the step at which output tokens are measured."""
NUM_TOKENS = 12
"""Output tokens that are kept of a feature."""
NUM_STEERED = 48
"""The most likely tokens with steering, at each place: the candidates."""
NUM_BASE = 1000
"""The most likely tokens without steering, at each place. Others count as likely as the last of these."""
MIN_PART = 1e-4

Distribution = Sequence[tuple[int, float]]
"""Ids and log-probabilities (nats) of the most likely tokens at a place, best first."""


def output_tokens(base: Sequence[Mapping[int, float]], steered: Sequence[Distribution]) -> list[tuple[int, float]]:
    """Return ids of tokens and their parts of KL(steered || unsteered) in nats, the largest first.

    The part of a token is the mean of ``p ln(p / q)`` over the places; ``p`` is its probability with steering and ``q``
    without. ``base`` has log-probabilities by token id at each place.
    """
    parts: dict[int, float] = defaultdict(float)
    for before, after in zip(base, steered, strict=True):
        rest = min(before.values())
        for token_id, logprob in after:
            parts[token_id] += math.exp(logprob) * (logprob - before.get(token_id, rest)) / len(base)
    best = sorted(parts.items(), key=lambda item: (-item[1], item[0]))[:NUM_TOKENS]
    return [(token_id, part) for token_id, part in best if part >= MIN_PART]
