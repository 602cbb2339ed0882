"""Which features are active on which tokens: for features that fire together, and for examples of every strength."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from steering.measuring.accumulators import Excerpt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from torch import Tensor

MAX_ACTIVE = 128  # features counted at a token, the strongest; trained SAEs have fewer
MAX_EVENTS = 1 << 24  # activations kept: 150 MiB, and about 1 GiB while they are sorted
NUM_COFIRING = 20
MIN_TOGETHER = 3  # tokens; below, the same value says more about chance than about the features
_CELLS = 1 << 20  # counts of pairs at once
_PAIRS = 1 << 20  # pairs counted at once


@dataclass(frozen=True, slots=True)
class CofiringFeature:
    """A feature that is active on the same tokens as another one.

    ``phi`` is the correlation of "active" between both (phi coefficient), ``tokens`` how often both are active.
    """

    index: int
    phi: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest activation of a feature in a document, at token ``place``."""

    document: int
    place: int
    value: float


class SparseActivity:
    """The activations above 0 of each document, in bounded memory.

    At most MAX_ACTIVE features count at a token. When there are more than ``max_events``, every other document is
    dropped, again and again if need be, so that those that stay are spread over the whole corpus.
    """

    def __init__(self, d_sae: int, *, max_events: int = MAX_EVENTS) -> None:
        self.d_sae = d_sae
        self._max_events = max_events
        self._stride = 1
        self._num_added = 0
        self._num_events = 0
        self._documents: dict[int, _Document] = {}
        self._by_feature: _Peaks | None = None

    def add(self, number: int, activations: Tensor, ordinary: Tensor) -> None:
        """Add the activations ``[tokens, d_sae]`` of a document, 0 where a token is not ``ordinary``."""
        self._num_added += 1
        if (self._num_added - 1) % self._stride:
            return
        document = _Document.read(activations, int(ordinary.sum()), self._num_added - 1)
        self._documents[number] = document
        self._num_events += document.num_events
        self._by_feature = None
        while self._num_events > self._max_events and len(self._documents) > 1:
            self._stride *= 2
            self._documents = {key: one for key, one in self._documents.items() if one.order % self._stride == 0}
            self._num_events = sum(one.num_events for one in self._documents.values())

    @property
    def num_tokens(self) -> int:
        """The number of ordinary tokens of the documents that were kept."""
        return sum(document.num_tokens for document in self._documents.values())

    def peaks(self, feature: int) -> list[Peak]:
        """Return the largest activation in each document where the feature is active, the largest first."""
        if self._by_feature is None:
            self._by_feature = _Peaks(self.d_sae, self._documents)
        return self._by_feature.of(feature)

    def excerpt(self, feature: int, peak: Peak, width: int) -> Excerpt:
        """Return up to ``width`` tokens around a peak, three quarters of them before it."""
        document = self._documents[peak.document]
        num_tokens = len(document.starts) - 1
        start = max(0, min(peak.place - width * 3 // 4, num_tokens - width))
        return Excerpt(peak.document, start, document.window(feature, start, min(start + width, num_tokens)))

    def cofiring(self, count: int = NUM_COFIRING) -> list[tuple[CofiringFeature, ...]]:
        """Return for each feature up to ``count`` others with the largest phi above 0, largest first.

        phi = (n n_ab - n_a n_b) / sqrt(n_a n_b (n - n_a) (n - n_b)) over n tokens, of which a and b are active on n_a
        and n_b, and both on n_ab. Pairs with n_ab below MIN_TOGETHER are left out.
        """
        found: list[tuple[CofiringFeature, ...]] = [()] * self.d_sae
        if not self._num_events:
            return found
        for index, others in _Pairs(self.d_sae, self.num_tokens, self._documents).strongest(count):
            found[index] = others
        return found


@dataclass(frozen=True, slots=True)
class _Document:
    """The activations of one document by token: those of token t are ``starts[t]`` to ``starts[t + 1]``."""

    order: int
    num_tokens: int
    starts: Tensor
    features: Tensor
    values: Tensor

    @classmethod
    def read(cls, activations: Tensor, num_tokens: int, order: int) -> _Document:
        if int((activations > 0).sum(1).max()) > MAX_ACTIVE:
            least = activations.topk(MAX_ACTIVE, dim=1).values[:, -1:]
            activations = torch.where(activations >= least, activations, 0.0)
        tokens, features = (activations > 0).nonzero(as_tuple=True)
        starts = torch.searchsorted(tokens, torch.arange(len(activations) + 1))
        return cls(order, num_tokens, starts, features.int(), activations[tokens, features].float())

    @property
    def num_events(self) -> int:
        return len(self.features)

    def lengths(self) -> Tensor:
        return self.starts.diff()

    def window(self, feature: int, start: int, stop: int) -> tuple[float, ...]:
        first, last = int(self.starts[start]), int(self.starts[stop])
        hits = (self.features[first:last] == feature).nonzero().flatten() + first
        values = torch.zeros(stop - start)
        values[torch.searchsorted(self.starts, hits, right=True) - 1 - start] = self.values[hits]
        return tuple(values.tolist())

    def peaks(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the active features in ascending order, their largest activations, and the tokens of these."""
        tokens = torch.repeat_interleave(torch.arange(len(self.starts) - 1), self.lengths())
        order = self.values.argsort(descending=True, stable=True)
        features, inverse = torch.unique(self.features[order], return_inverse=True)
        first = torch.full((len(features),), len(order)).scatter_reduce_(
            0, inverse, torch.arange(len(order)), reduce="amin"
        )
        return features, self.values[order][first], tokens[order][first].int()


class _Peaks:
    """The largest activations of all documents, by feature."""

    def __init__(self, d_sae: int, documents: dict[int, _Document]) -> None:
        found = [document.peaks() for document in documents.values()]
        sizes = torch.tensor([len(features) for features, _, _ in found])
        numbers = torch.repeat_interleave(torch.tensor(list(documents)), sizes)
        features, values, places = (torch.cat(one) for one in zip(*found, strict=True))
        order = values.argsort(descending=True, stable=True)
        order = order[features[order].argsort(stable=True)]
        self._starts = torch.searchsorted(features[order], torch.arange(d_sae + 1, dtype=features.dtype))
        self._documents, self._values, self._places = numbers[order], values[order], places[order]

    def of(self, feature: int) -> list[Peak]:
        part = slice(int(self._starts[feature]), int(self._starts[feature + 1]))
        rows = (self._documents[part].tolist(), self._places[part].tolist(), self._values[part].tolist())
        return [Peak(*row) for row in zip(*rows, strict=True)]


class _Pairs:
    """Counts of pairs of features, for some features at a time. Features that are hardly ever active are left out."""

    def __init__(self, d_sae: int, num_tokens: int, documents: dict[int, _Document]) -> None:
        self._num_tokens = num_tokens
        features = torch.cat([one.features for one in documents.values()])
        self._lengths = torch.cat([one.lengths() for one in documents.values()])
        active = torch.bincount(features, minlength=d_sae)
        self._kept = (active >= MIN_TOGETHER).nonzero().flatten()
        self._active = active[self._kept].double()
        renumbered = torch.full((d_sae,), -1, dtype=torch.int32)
        renumbered[self._kept] = torch.arange(len(self._kept), dtype=torch.int32)
        self._features = renumbered[features]
        self._begins = self._lengths.cumsum(0) - self._lengths  # of each token
        tokens = torch.repeat_interleave(torch.arange(len(self._lengths), dtype=torch.int32), self._lengths)
        order = self._features.argsort(stable=True)
        self._tokens = tokens[order]  # of each activation, by feature
        numbers = torch.arange(len(self._kept) + 1, dtype=torch.int32)
        self._starts = torch.searchsorted(self._features[order], numbers)

    def strongest(self, count: int) -> Iterator[tuple[int, tuple[CofiringFeature, ...]]]:
        """Yield each feature with those that it fires with."""
        kept, size = self._kept.tolist(), max(1, _CELLS // max(1, len(self._kept)))
        for first in range(0, len(self._kept), size):
            last = min(first + size, len(self._kept))
            together = self._count(first, last)
            best = self._phi(first, together).topk(min(count, len(kept)), dim=1)
            tables = (best.indices, best.values, together.gather(1, best.indices))
            for index, *row in zip(kept[first:last], *(table.tolist() for table in tables), strict=True):
                found = zip(*row, strict=True)
                yield index, tuple(CofiringFeature(kept[other], phi, tokens) for other, phi, tokens in found if phi > 0)

    def _count(self, first: int, last: int) -> Tensor:
        """Return on how many tokens each of some features is active together with each feature ``[rows, kept]``."""
        num = len(self._kept)
        counts = torch.zeros((last - first) * num, dtype=torch.int64)
        begin, end = int(self._starts[first]), int(self._starts[last])
        own = torch.repeat_interleave(torch.arange(last - first), self._starts[first : last + 1].diff())
        tokens = self._tokens[begin:end].long()
        for part in _parts(self._lengths[tokens]):
            lengths = self._lengths[tokens[part]]
            ends = lengths.cumsum(0)
            places = torch.arange(int(ends[-1])) - torch.repeat_interleave(ends - lengths, lengths)
            others = self._features[places + torch.repeat_interleave(self._begins[tokens[part]], lengths)].long()
            cells = torch.repeat_interleave(own[part], lengths) * num + others
            counts += torch.bincount(cells[others >= 0], minlength=len(counts))
        return counts.view(last - first, num)

    def _phi(self, first: int, together: Tensor) -> Tensor:
        """Return phi, 0 where it is not reported."""
        n, num_rows = self._num_tokens, len(together)
        own = self._active[first : first + num_rows, None]
        spread = (own * (n - own)).sqrt() * (self._active * (n - self._active)).sqrt()
        phi = ((n * together.double() - own * self._active) / spread).float()
        rows = torch.arange(num_rows)
        phi[rows, first + rows] = 0.0
        return torch.where((together >= MIN_TOGETHER) & phi.isfinite(), phi, 0.0)


def _parts(lengths: Tensor) -> Iterator[slice]:
    """Yield slices of activations with about _PAIRS pairs each."""
    steps = (lengths.cumsum(0) - lengths) // _PAIRS
    start = 0
    for size in torch.unique_consecutive(steps, return_counts=True)[1].tolist():
        yield slice(start, start + size)
        start += size


def spread_over(peaks: list[Peak], count: int, without: Collection[int]) -> list[Peak]:
    """Return up to ``count`` peaks, evenly spread from the largest to the smallest, of other documents."""
    free = [peak for peak in peaks if peak.document not in without]
    if len(free) <= count:
        return free
    return [free[(2 * number + 1) * len(free) // (2 * count)] for number in range(count)]
