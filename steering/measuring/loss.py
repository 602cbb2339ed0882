"""Loss recovered: how much of the model's ability to predict the next token survives the reconstruction of an SAE.

The cross-entropy in nats is measured four times on the same tokens: of the model itself, with the reconstruction
spliced in, with zeros and with the mean residual in its place. Loss recovered is ``(zero - spliced) / (zero - model)``,
SAELens' ``ce_loss_score``: 1 if nothing is lost, 0 if the reconstruction is as bad as zeros.

As in SAELens, special tokens keep their residual (attention sinks do here too), zeros replace the residual of every
token, and the loss is that of the predictions made at ordinary tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from inference.interventions import Site
from inference.registry.splice import Reconstruction, Splice
from inference.steering_refs import SAERef, SAESource
from steering.measuring.document import TokenisedDocument
from steering.measuring.measurement import Measurement, ResidualReader
from steering.spec.edit import SINK_FACTOR

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SparseAutoencoder

LOSS_TOKENS = 4096  # the loss is measured on up to this many tokens: it takes five passes over them


class LossReader(ResidualReader, Protocol):
    """Also predicts texts with the residual at a site replaced."""

    def losses(self, token_ids: Sequence[int], is_ordinary: Sequence[bool], splice: Splice | None) -> Tensor:
        """Return the cross-entropy in nats ``[tokens - 1]`` of each token but the first, given those before it."""


@dataclass(frozen=True, slots=True)
class SplicedLoss:
    """Mean cross-entropies in nats over ``num_tokens`` predictions."""

    model: float
    spliced: float
    zero: float
    mean: float
    num_tokens: int

    @property
    def recovered(self) -> float | None:
        return loss_recovered(self.model, self.spliced, self.zero)


def loss_recovered(model: float, spliced: float, ablated: float) -> float | None:
    """Return the share of the loss that the reconstruction recovers; None if the ablation does not raise the loss."""
    return (ablated - spliced) / (ablated - model) if ablated > model else None


@torch.inference_mode()
def measure_loss(
    sae: SparseAutoencoder,
    source: SAESource,
    site: Site,
    documents: Sequence[TokenisedDocument],
    measurement: Measurement,
    reader: LossReader,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SplicedLoss | None:
    """Measure the loss on the first :data:`LOSS_TOKENS` tokens; None if no text has two ordinary tokens.

    ``measurement`` is that of the same SAE, for its mean residual and median norm; ``source`` is where an engine in
    another process loads it.
    """
    mean, median = measurement.reconstruction.mean, measurement.sinks.median
    if mean is None or median is None:
        return None
    limit = SINK_FACTOR * median
    spliced = Splice(site, sae.d_in, Reconstruction(sae, SAERef(source, sae.d_sae)), limit)
    splices = (
        None,
        spliced,
        Splice(site, sae.d_in, torch.zeros_like, everywhere=True),
        Splice(site, sae.d_in, partial(_expanded, mean), limit),
    )
    sums, count = torch.zeros(len(splices), dtype=torch.float64), 0
    chosen = list(_first(documents))
    for number, document in enumerate(chosen):
        progress(number, len(chosen))
        h = reader.read(document.token_ids, (site,))[site]
        counted = spliced.ordinary(h, document.is_ordinary)[:-1]
        losses = [reader.losses(document.token_ids, document.is_ordinary, splice) for splice in splices]
        sums += torch.stack([loss[counted].double().sum() for loss in losses])
        count += int(counted.sum())
    if not count:
        return None
    model, spliced_loss, zero, of_mean = (sums / count).tolist()
    return SplicedLoss(model, spliced_loss, zero, of_mean, count)


def _expanded(row: Tensor, h: Tensor) -> Tensor:
    return row.to(h.device).expand_as(h)


def _first(documents: Iterable[TokenisedDocument]) -> Iterable[TokenisedDocument]:
    tokens = 0
    for document in documents:
        if tokens >= LOSS_TOKENS:
            return
        if document.num_ordinary > 1 and len(document.token_ids) > 1:
            tokens += document.num_ordinary
            yield document
