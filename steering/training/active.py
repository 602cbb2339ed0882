"""The active features of a batch in sparse form, and the gradients that only concern them.

Training in this form costs one dense product per step, ``[batch, d_in] x [d_in, d_sae]``, to find the active features;
decoding and all gradients touch only these.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag


@dataclass(frozen=True, slots=True, eq=False)
class ActiveFeatures:
    """Pairs of token and feature with a value, ordered by token; ``offsets`` ``[tokens]`` are the tokens' first pairs.

    ``features`` and ``values`` are ``[pairs]``.
    """

    features: Tensor
    values: Tensor
    offsets: Tensor

    @property
    def tokens(self) -> Tensor:
        """The token of each pair ``[pairs]``."""
        ends = torch.cat([self.offsets[1:], self.offsets.new_tensor([len(self.features)])])
        return torch.repeat_interleave(torch.arange(len(self.offsets)), ends - self.offsets)

    def decode(self, rows: Tensor, values: Tensor) -> Tensor:
        """Return the sums ``[tokens, d_in]`` of decoder rows ``[d_sae, d_in]`` times ``values`` ``[pairs]``."""
        return embedding_bag(self.features, rows, self.offsets, per_sample_weights=values, mode="sum")


def largest_per_token(pre: Tensor, k: int) -> ActiveFeatures:
    """Return the ``k`` largest of each row of ``pre`` ``[tokens, d_sae]``, with the values of their ReLU."""
    top = pre.topk(k, dim=-1, sorted=False)
    offsets = torch.arange(len(pre)) * k
    return ActiveFeatures(top.indices.flatten(), top.values.flatten().float().relu(), offsets)


def largest_of_batch(pre: Tensor, num: int, guess: float) -> ActiveFeatures:
    """Return the up to ``num`` largest positive values of ``pre`` ``[tokens, d_sae]``.

    ``guess`` is a value that they probably exceed. It saves time, and does not change the result.
    """
    floor = max(guess, 0.0)
    if floor > 0 and int((pre > floor).sum()) < num:
        floor = 0.0
    found = above(pre, floor)
    if len(found.features) <= num:
        return found
    kept = torch.zeros(len(found.values), dtype=torch.bool)
    kept[found.values.topk(num, sorted=False).indices] = True
    return _only(found, kept, len(pre))


def above(pre: Tensor, threshold: Tensor | float) -> ActiveFeatures:
    """Return the values of ``pre`` ``[tokens, d_sae]`` above ``threshold``, a number or ``[d_sae]``."""
    mask = pre > threshold
    pairs = mask.nonzero()
    return ActiveFeatures(pairs[:, 1], pre[mask].float(), _offsets(pairs[:, 0], len(pre)))


def sum_by_feature(x: Tensor, active: ActiveFeatures, weights: Tensor, d_sae: int) -> Tensor:
    """Return for each feature the sum ``[d_sae, d_in]`` of rows of ``x`` ``[tokens, d_in]`` times ``weights``."""
    order = active.features.argsort(stable=True)
    counts = torch.bincount(active.features, minlength=d_sae)
    return embedding_bag(
        active.tokens[order], x, counts.cumsum(0) - counts, per_sample_weights=weights[order], mode="sum"
    )


def _only(active: ActiveFeatures, kept: Tensor, num_tokens: int) -> ActiveFeatures:
    return ActiveFeatures(active.features[kept], active.values[kept], _offsets(active.tokens[kept], num_tokens))


def _offsets(tokens: Tensor, num_tokens: int) -> Tensor:
    counts = torch.bincount(tokens, minlength=num_tokens)
    return counts.cumsum(0) - counts
