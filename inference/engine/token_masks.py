"""Which tokens a grammar allows, as bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """``rows`` are the rows of the step's logits that are masked, ``bits`` int32 ``[len(rows), ceil(vocab / 32)]``.

    Bit i of word w allows token 32 * w + i, which is llguidance's layout.
    """

    rows: tuple[int, ...]
    bits: Tensor

    def banned(self, vocab_size: int, device: torch.device) -> Tensor:
        """Bool ``[len(rows), vocab_size]`` on ``device``: the tokens that are not allowed."""
        if device.type == "cpu":
            # Four times faster than shifts, but only numpy has it.
            octets = self.bits.cpu().contiguous().numpy().view(np.uint8)
            allowed = torch.from_numpy(np.unpackbits(octets, axis=1, bitorder="little", count=vocab_size))
        else:
            allowed = unpack_by_shifts(self.bits.to(device, non_blocking=True))[:, :vocab_size]
            allowed = torch.nn.functional.pad(allowed, (0, vocab_size - allowed.shape[1]))
        return allowed == 0


def unpack_by_shifts(bits: Tensor) -> Tensor:
    """Int32 ``[rows, words]`` to ``[rows, 32 * words]`` of 0 and 1, on the tensor's own device."""
    places = torch.arange(WORD_BITS, dtype=torch.int32, device=bits.device)
    return ((bits.unsqueeze(-1) >> places) & 1).flatten(1)
