"""Which tokens some rows of a batch may take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """``rows`` of the logits are masked. Bit i of word w of ``bits`` (``[len(rows), words]`` int32, on the CPU) allows
    token 32 * w + i; tokens beyond the last word are not allowed.
    """

    rows: tuple[int, ...]
    bits: Tensor

    def apply(self, logits: Tensor) -> Tensor:
        """``[rows, vocab]`` with minus infinity for the tokens that are not allowed; a copy."""
        if not self.rows:
            return logits
        logits = logits.clone()
        rows = torch.tensor(self.rows, device=logits.device)
        allowed = self._allowed(logits.shape[1], logits.device)
        logits[rows] = logits[rows].masked_fill_(~allowed, float("-inf"))
        return logits

    def _allowed(self, vocab_size: int, device: torch.device) -> Tensor:
        """``[len(rows), vocab_size]`` bool; unpacked where the logits are, since bits are cheap to move."""
        if device.type == "cpu":
            octets = np.ascontiguousarray(self.bits.numpy()).view(np.uint8)
            unpacked = np.unpackbits(octets, axis=1, bitorder="little", count=vocab_size)
            return torch.from_numpy(unpacked).view(torch.bool)
        bits = self.bits.to(device, non_blocking=True)
        flags = (bits.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=device)) & 1
        allowed = flags.flatten(1)[:, :vocab_size].bool()
        return torch.nn.functional.pad(allowed, (0, vocab_size - allowed.shape[1]))
