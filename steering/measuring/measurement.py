"""Measure an SAE on the documents of a corpus, in one pass over the residuals of the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch

from inference.interventions import Site
from steering.measuring.accumulators import (
    Excerpt,
    GrowingHistogram,
    Histogram,
    ReconstructionMeter,
    SinkFinder,
    TopActivatingTexts,
)
from steering.measuring.activity import CofiringFeature, SparseActivity, spread_over
from steering.measuring.document import TokenisedDocument
from steering.saes.errors import InvalidSAEError

if TYPE_CHECKING:
    from torch import Tensor

    from inference.text.model_text import ModelText
    from steering.saes.sae import SparseAutoencoder

NUM_EXAMPLES = 5
EXAMPLE_TOKENS = 48
BANDS = ((0.75, 1.0), (0.5, 0.75), (0.25, 0.5), (0.0, 0.25))
BAND_EXAMPLES = 3
BAND_TOKENS = 24
_CHUNK_BYTES = 32 << 20  # activations computed at once


class ResidualReader(Protocol):
    """Captures the residuals of one unsteered model.

    Two implementations: :class:`steering.residuals.EngineResidualReader` runs the texts in the engine beside the
    requests, :class:`inference.registry.standalone_model.StandaloneModel` loads the model without an engine.
    """

    text: ModelText
    num_layers: int

    def read(self, token_ids: Sequence[int], sites: Sequence[Site]) -> dict[Site, Tensor]:
        """Return ``[tokens, d]`` float32 on the CPU for each site."""


Progress = Callable[[int, int], None]
"""Called with the number of finished documents and of all documents; it raises an exception to stop."""


@dataclass(frozen=True, slots=True)
class ActivationBand:
    """Excerpts whose largest activation is above ``low`` and at most ``high`` times that of the feature.

    ``num_documents``: how many of the documents that were kept have their largest activation there.
    """

    low: float
    high: float
    num_documents: int
    excerpts: tuple[Excerpt, ...]


@dataclass(frozen=True, slots=True)
class FeatureFacts:
    """Statistics of one feature on the corpus. ``density`` is the share of ordinary tokens on which it fires.

    ``excerpts`` are those with the largest activations, ``bands`` others, by strength.
    """

    max_activation: float
    density: float
    histogram: Histogram
    excerpts: tuple[Excerpt, ...]
    bands: tuple[ActivationBand, ...]


@dataclass(frozen=True, slots=True)
class Cofiring:
    """For each feature the others that are active on the same of ``num_tokens`` ordinary tokens."""

    num_tokens: int
    features: tuple[tuple[CofiringFeature, ...], ...]


class Measurement:
    """Statistics over ordinary tokens. On special tokens and attention sinks, all features count as inactive."""

    def __init__(self, d_sae: int, *, num_examples: int = NUM_EXAMPLES) -> None:
        self.d_sae = d_sae
        self.reconstruction = ReconstructionMeter()
        self.sinks = SinkFinder()
        self._num_active = torch.zeros(d_sae, dtype=torch.int64)
        self._largest = torch.zeros(d_sae)
        self._histogram = GrowingHistogram(d_sae)
        self._strongest = TopActivatingTexts(d_sae, num_texts=num_examples, width=EXAMPLE_TOKENS)
        self._activity = SparseActivity(d_sae)

    @property
    def num_tokens(self) -> int:
        return self.reconstruction.num_tokens

    @property
    def l0(self) -> float | None:
        return int(self._num_active.sum()) / self.num_tokens if self.num_tokens else None

    @property
    def dead_share(self) -> float:
        return float((self._num_active == 0).double().mean())

    def feature(self, index: int) -> FeatureFacts:
        density = int(self._num_active[index]) / max(1, self.num_tokens)
        largest, strongest = float(self._largest[index]), self._strongest.of(index)
        bands = tuple(self._bands(index, largest, {one.document for one in strongest}))
        return FeatureFacts(largest, density, self._histogram.of(index), strongest, bands)

    @cached_property
    def cofiring(self) -> Cofiring:
        """The features that are active on the same tokens, for each feature. Slow for a wide SAE."""
        return Cofiring(self._activity.num_tokens, tuple(self._activity.cofiring()))

    def add(self, number: int, document: TokenisedDocument, h: Tensor, sae: SparseAutoencoder) -> None:
        """Add the residuals ``[tokens, d_in]`` of a document; excerpts refer to it by ``number``."""
        ordinary = self.sinks.ordinary(h, torch.tensor(document.is_ordinary))
        activations = torch.empty(len(h), sae.d_sae)
        for part in _chunks(len(h), sae.d_sae):
            activations[part] = sae.encode(h[part])
            self.reconstruction.add(h[part][ordinary[part]], sae.decode(activations[part], h[part])[ordinary[part]])
        activations[~ordinary] = 0
        self._num_active += (activations > 0).sum(0)
        self._largest = torch.maximum(self._largest, activations.amax(0))
        self._histogram.add(activations)
        self._strongest.add(number, activations)
        self._activity.add(number, activations, ordinary)

    def _bands(self, index: int, largest: float, shown: Collection[int]) -> Iterator[ActivationBand]:
        peaks = self._activity.peaks(index) if largest > 0 else []
        for low, high in BANDS if peaks else ():
            own = [peak for peak in peaks if low * largest < peak.value <= high * largest]
            chosen = spread_over(own, BAND_EXAMPLES, shown)
            excerpts = tuple(self._activity.excerpt(index, peak, BAND_TOKENS) for peak in chosen)
            yield ActivationBand(low, high, len(own), excerpts)


@torch.inference_mode()
def measure_sae(
    sae: SparseAutoencoder,
    site: Site,
    documents: Sequence[TokenisedDocument],
    reader: ResidualReader,
    progress: Progress = lambda done, total: None,
) -> Measurement:
    """Measure an SAE. Raise InvalidSAEError for a transcoder, and for residuals that are not finite."""
    if not sae.reads_its_site:
        raise InvalidSAEError(
            "A transcoder cannot be measured: it reads the MLP's input and writes its output, while a measurement "
            "compares one site with itself."
        )
    if not any(document.num_ordinary for document in documents):
        raise InvalidSAEError("The corpus contains no ordinary tokens to measure.")
    measurement = Measurement(sae.d_sae)
    for number, document in enumerate(documents):
        progress(number, len(documents))
        h = reader.read(document.token_ids, (site,))[site]
        if not bool(h.isfinite().all()):
            raise InvalidSAEError(f"The model's residuals at {site.label} are not all finite.")
        measurement.add(number, document, h, sae)
    if not measurement.num_tokens:
        raise InvalidSAEError("The corpus contains no tokens to measure except the first ones of its texts.")
    progress(len(documents), len(documents))
    return measurement


def _chunks(num_tokens: int, d_sae: int) -> list[slice]:
    step = max(1, _CHUNK_BYTES // (4 * d_sae))
    return [slice(start, min(start + step, num_tokens)) for start in range(0, num_tokens, step)]
