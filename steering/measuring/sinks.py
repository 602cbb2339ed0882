"""Attention sinks: tokens that take up attention which has nowhere to go, with residuals of another scale.

A text's first token is one where the text does not begin with a special token, and later ones are told by their norm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from steering.spec.edit import SINK_FACTOR

if TYPE_CHECKING:
    from torch import Tensor

_KEPT = 1 << 15  # norms that a median is taken of


class SinkFinder:
    """Knows the norms of one site's ordinary tokens so far."""

    def __init__(self) -> None:
        self.num_sinks = 0
        self._norms = torch.zeros(0)  # the newest ones

    @property
    def median(self) -> float | None:
        """Of ordinary tokens that are no sinks; None before there were any."""
        return float(self._norms.median()) if len(self._norms) else None

    def ordinary(self, h: Tensor, is_ordinary: Tensor) -> Tensor:
        """Which tokens of a text are neither special nor sinks: ``[tokens]`` of ``[tokens, d]`` from its start."""
        norms = h.float().norm(dim=-1)
        kept = is_ordinary.clone()
        kept[:1] = False  # special, or a sink
        known = torch.cat([self._norms, norms[kept]])[-_KEPT:]
        if len(known):
            kept &= norms <= SINK_FACTOR * known.median()
        self._norms = torch.cat([self._norms, norms[kept]])[-_KEPT:]
        self.num_sinks += int(is_ordinary.sum() - kept.sum())
        return kept
