"""Random tokens by inverse transform."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 128


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """One token a row: ``weights`` ``[rows, vocab]`` need not add up to 1, ``uniform`` ``[rows]`` is float64 in [0, 1).

    In two steps, blocks and then places in a block, so that only one pass goes over the vocabulary. A row without a
    weight above zero gives a token that means nothing.
    """
    rows, vocab = weights.shape
    blocks = functional.pad(weights, (0, -vocab % BLOCK)) if vocab % BLOCK else weights
    blocks = blocks.reshape(rows, -1, BLOCK)  # [rows, blocks, BLOCK]
    sums = blocks.sum(-1).double()
    block, rest = _find(sums, uniform.unsqueeze(1))
    chosen = blocks[torch.arange(rows, device=weights.device), block.squeeze(1)].double()
    place, _ = _find(chosen, rest)
    drawn = (block * BLOCK + place).clamp_(max=vocab - 1)
    # Rounding can put the target on the very end of the distribution, past its last possible token.
    is_possible = weights.gather(1, drawn).squeeze(1) > 0
    return torch.where(is_possible, drawn.squeeze(1), weights.argmax(-1)) if rows else drawn.squeeze(1)


def _find(weights: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Where ``share`` ``[rows, 1]`` of the total is reached, and which share of that place's own weight is used up."""
    ends = weights.cumsum(-1)
    target = share * ends[:, -1:]
    place = torch.searchsorted(ends, target, right=True).clamp_(max=weights.shape[1] - 1)
    own = weights.gather(1, place)
    return place, ((target - (ends.gather(1, place) - own)) / own).clamp_(0.0, 1.0)
