"""Activations of features on a text of the user's, computed in the engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inference.interventions import Site
from steering.models import SAE, Feature, PlainVector
from steering.residuals import open_engine_reader
from steering.sae_registry.loaded_sae import load_registered_sae

if TYPE_CHECKING:
    from torch import Tensor

MAX_TOKENS = 512
_RARE = 1e-4
_LARGE_FIELDS = ("examples", "example_bands", "traffic_examples", "histogram")


@dataclass(frozen=True, slots=True)
class ActiveFeature:
    """A feature that is active on a text: its largest activation, and the text's ``tokens`` with their ``values``."""

    feature: Feature
    tokens: list[str]
    values: list[float]

    @property
    def largest(self) -> float:
        return max(self.values)

    @property
    def distinction(self) -> float:
        """How much the feature distinguishes the text; features of unknown density count as rare."""
        density = self.feature.density or _RARE
        return min(self.share_of_max or 1.0, 1.0) * math.log(1 / min(density, 1.0))

    def order(self) -> tuple[float, float, int]:
        """Return the key that sorts the most distinctive feature first."""
        return -self.distinction, -self.largest, self.feature.index

    @property
    def share_of_max(self) -> float | None:
        """The largest activation as a share of the feature's own maximum; None if that is unknown."""
        known = self.feature.max_activation
        return self.largest / known if known else None


def activations_on(feature: Feature, text: str) -> dict[str, Any]:
    """Return the tokens of a text and the feature's activation on each, 0 on special tokens and attention sinks.

    Loads the model and the SAE if necessary. Raise MillmError: errors of loading and of the engine.
    """
    tokens, values = _read(feature.sae, text, lambda encoded: encoded[:, [feature.index]])
    return {"tokens": tokens, "values": [] if values is None else values[:, 0].tolist()}


def features_on(sae: SAE, text: str, limit: int) -> list[ActiveFeature]:
    """Return the features that distinguish a text, the most distinctive first.

    That is the largest activation on the text, as a share of the feature's maximum where that is known, times ``ln(1 /
    density)``: active as strongly as the feature gets, and rare elsewhere. Special tokens and attention sinks do not
    count. Loads the model and the SAE if necessary. Raise MillmError: errors of loading and of the engine.
    """
    tokens, values = _read(sae, text, lambda encoded: encoded)
    if values is None:
        return []
    largest = values.amax(0)
    active = largest.nonzero().flatten().tolist()
    rows = sae.features.filter(index__in=active).select_related("sae").defer(*_LARGE_FIELDS)
    found = [ActiveFeature(row, tokens, values[:, row.index].tolist()) for row in rows]
    return sorted(found, key=ActiveFeature.order)[:limit]


def products_on(vector: PlainVector, text: str) -> dict[str, Any]:
    """Return the tokens of a text, and on each the product of the residual and the vector, as watch rules measure it.

    Special tokens and attention sinks, whose residuals are much larger than others, get the mean of the others. Loads
    the model if necessary. Raise MillmError: errors of loading and of the engine.
    """
    import torch

    from steering.measuring.accumulators import SinkFinder  # imports torch

    with open_engine_reader(vector.vector_set.model) as reader:
        ids = reader.text.encode(text)[:MAX_TOKENS]
        if not ids:
            return {"tokens": [], "values": []}
        with torch.inference_mode():
            h = reader.read(ids, (vector.place,))[vector.place]
            values = h.float() @ torch.frombuffer(bytearray(vector.data), dtype=torch.float32).to(h.device)
            special = reader.text.special_token_ids
            ordinary = SinkFinder().ordinary(h, torch.tensor([i not in special for i in ids]))
            if ordinary.any():
                values[~ordinary] = values[ordinary].mean()
        tokens = [reader.text.token_bytes(i).decode("utf-8", "replace") for i in ids]
        return {"tokens": tokens, "values": values.tolist()}


def _read(sae: SAE, text: str, part: Callable[[Tensor], Tensor]) -> tuple[list[str], Tensor | None]:
    """Return the tokens, and a part of the activations [tokens, d_sae]; None without tokens.

    As in measurements, all features count as inactive on special tokens and attention sinks.
    """
    import torch

    from steering.measuring.accumulators import SinkFinder  # imports torch

    encoder = load_registered_sae(sae).encoder
    site = Site(sae.layer, sae.site)  # type: ignore[arg-type]  # the row's choices
    with open_engine_reader(sae.model) as reader:
        ids = reader.text.encode(text)[:MAX_TOKENS]
        if not ids:
            return [], None
        special = reader.text.special_token_ids
        with torch.inference_mode():
            h = reader.read(ids, (site,))[site]
            values = part(encoder.encode(h))
            values[~SinkFinder().ordinary(h, torch.tensor([i not in special for i in ids]))] = 0.0
        return [reader.text.token_bytes(i).decode("utf-8", "replace") for i in ids], values
