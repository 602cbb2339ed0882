"""Statistics of activations, accumulated text by text in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from steering.spec.edit import SINK_FACTOR

if TYPE_CHECKING:
    from torch import Tensor


class ReconstructionMeter:
    """Fraction of variance unexplained and mean norm, summed in float64 to keep precision on a long corpus."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._sum: Tensor | None = None
        self._squares = 0.0
        self._errors = 0.0
        self._norms = 0.0

    def add(self, h: Tensor, reconstruction: Tensor) -> None:
        """Add residuals ``[tokens, d_in]`` and their reconstruction."""
        if not len(h):
            return
        h = h.double()
        total = h.sum(0)
        self.num_tokens += len(h)
        self._sum = total if self._sum is None else self._sum + total
        self._squares += float(h.square().sum())
        self._errors += float((h - reconstruction.double()).square().sum())
        self._norms += float(torch.linalg.vector_norm(h, dim=-1).sum())

    @property
    def fvu(self) -> float | None:
        """Fraction of variance unexplained; None for fewer than two tokens, and without variance."""
        if self._sum is None or self.num_tokens < 2:
            return None
        variance = self._squares - float(self._sum.square().sum()) / self.num_tokens
        return self._errors / variance if variance > 0 else None

    @property
    def mean(self) -> Tensor | None:
        """The mean residual ``[d_in]`` as float32; None before the first token."""
        return None if self._sum is None else (self._sum / self.num_tokens).float()

    @property
    def mean_norm(self) -> float | None:
        return self._norms / self.num_tokens if self.num_tokens else None


_KEPT = 1 << 15  # the number of newest norms that the median is computed from


class SinkFinder:
    """Detects attention sinks by comparing norms to the median norm of the ordinary tokens of a site so far.

    Attention sinks are tokens that collect attention without a target; their residuals are of another scale. The first
    token of a text counts as one unless it is a special token.
    """

    def __init__(self) -> None:
        self.num_sinks = 0
        self._norms = torch.zeros(0)  # the newest norms

    @property
    def median(self) -> float | None:
        """Median norm of ordinary tokens that are not sinks; None before the first one."""
        return float(self._norms.median()) if len(self._norms) else None

    def ordinary(self, h: Tensor, is_ordinary: Tensor) -> Tensor:
        """Return a mask ``[tokens]`` of tokens that are neither special nor sinks; ``h`` starts with the text."""
        norms = h.float().norm(dim=-1)
        kept = is_ordinary.clone()
        kept[:1] = False  # special, or a sink
        known = torch.cat([self._norms, norms[kept]])[-_KEPT:]
        if len(known):
            kept &= norms <= SINK_FACTOR * known.median()
        self._norms = torch.cat([self._norms, norms[kept]])[-_KEPT:]
        self.num_sinks += int(is_ordinary.sum() - kept.sum())
        return kept


NUM_BINS = 32


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram: ``counts[i]`` activations lie in ``(i * width, (i + 1) * width]``."""

    width: float
    counts: tuple[int, ...]


class GrowingHistogram:
    """A histogram per feature whose bins grow: a larger activation doubles their width and merges neighbouring bins.

    Widths are powers of two. Zeros are not counted. An activation on the border of two bins belongs to the upper one;
    the last bin includes its upper end.
    """

    def __init__(self, d_sae: int) -> None:
        self._counts = torch.zeros(d_sae, NUM_BINS, dtype=torch.int64)
        self._width = torch.zeros(d_sae)  # 0 until the feature fires

    def add(self, activations: Tensor) -> None:
        """Add activations ``[tokens, d_sae]`` float32."""
        self._widen(activations.amax(0))
        tokens, features = activations.nonzero(as_tuple=True)
        bins = (activations[tokens, features] / self._width[features]).long().clamp(max=NUM_BINS - 1)
        self._counts.view(-1).index_add_(0, features * NUM_BINS + bins, torch.ones_like(bins))

    def of(self, feature: int) -> Histogram:
        return Histogram(float(self._width[feature]), tuple(self._counts[feature].tolist()))

    def _widen(self, largest: Tensor) -> None:
        is_new = (self._width == 0) & (largest > 0)
        exponent = torch.frexp(largest / NUM_BINS).exponent
        self._width = torch.where(is_new, torch.ldexp(torch.ones_like(largest), exponent), self._width)
        while bool((short := largest > NUM_BINS * self._width).any()):
            pairs = self._counts[short].view(-1, NUM_BINS // 2, 2).sum(-1)
            self._counts[short] = torch.cat([pairs, torch.zeros_like(pairs)], dim=1)
            self._width[short] *= 2


_MAX_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Tokens of a document from ``start`` on, with one activation each."""

    document: int
    start: int
    values: tuple[float, ...]


class TopActivatingTexts:
    """The top ``num_texts`` documents of each feature, with ``width`` activations around the largest one.

    Three quarters of the window lie before the largest activation. Very wide SAEs keep fewer documents, so that all
    windows fit into half a GiB.
    """

    def __init__(self, d_sae: int, *, num_texts: int, width: int) -> None:
        kept = max(1, min(num_texts, _MAX_BYTES // (4 * width * d_sae)))
        self._width = width
        self._largest = torch.zeros(kept, d_sae)
        self._document = torch.full((kept, d_sae), -1, dtype=torch.int64)
        self._start = torch.zeros(kept, d_sae, dtype=torch.int64)
        self._values = torch.zeros(kept, d_sae, width)
        self._lengths: dict[int, int] = {}

    def add(self, document: int, activations: Tensor) -> None:
        """Add the activations ``[tokens, d_sae]`` of one document."""
        num_tokens = len(activations)
        self._lengths[document] = num_tokens
        largest, place = activations.max(0)
        weakest, slot = self._largest.min(0)
        features = (largest > weakest).nonzero().flatten()
        start = (place[features] - self._width * 3 // 4).clamp(min=0).clamp(max=max(0, num_tokens - self._width))
        tokens = start[:, None] + torch.arange(self._width)
        values = activations[tokens.clamp(max=num_tokens - 1), features[:, None]]
        slot = slot[features]
        self._largest[slot, features] = largest[features]
        self._document[slot, features] = document
        self._start[slot, features] = start
        self._values[slot, features] = torch.where(tokens < num_tokens, values, 0.0)

    def of(self, feature: int) -> tuple[Excerpt, ...]:
        """Return the excerpts of a feature, the strongest first."""
        order = self._largest[:, feature].argsort(descending=True, stable=True).tolist()
        return tuple(self._excerpt(slot, feature) for slot in order if self._document[slot, feature] >= 0)

    def _excerpt(self, slot: int, feature: int) -> Excerpt:
        document, start = int(self._document[slot, feature]), int(self._start[slot, feature])
        length = min(self._width, self._lengths[document] - start)
        return Excerpt(document, start, tuple(self._values[slot, feature, :length].tolist()))
