"""The best token of each row."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 512


def peaks(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Greatest values ``[rows]`` and the first places that have them, in the logits' own type. NaN is the greatest.

    In two steps, blocks and then the best block: torch's ``max`` that also gives places is 2 to 6 times slower than
    ``amax``, its ``argmax`` 12 times for bfloat16 on a CPU.
    """
    rows, vocab = logits.shape
    whole = vocab - vocab % BLOCK
    if whole == 0:
        best = logits.max(-1)
        return best.values, best.indices
    by_block = logits[:, :whole].reshape(rows, -1, BLOCK).amax(-1)
    if whole < vocab:
        by_block = torch.cat([by_block, logits[:, whole:].amax(-1, keepdim=True)], 1)
    start = by_block.max(-1).indices.unsqueeze(1) * BLOCK
    places = (start + torch.arange(BLOCK, device=logits.device)).clamp_(max=vocab - 1)
    best = logits.gather(1, places).max(-1)
    return best.values, places.gather(1, best.indices.unsqueeze(1)).view(rows)
