"""Features near another one: with similar decoder rows, or active on the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.steering_refs import SAESource
from inference.torch_threads import borrowed_workers
from steering.models import Feature
from steering.profiles.compilation import get_compiler

if TYPE_CHECKING:
    from torch import Tensor

MAX_NEIGHBOURS = 100


@dataclass(frozen=True, slots=True)
class NeighbourFeature:
    """A feature and the cosine of its decoder row with that of another one."""

    index: int
    cosine: float
    label: str


@dataclass(frozen=True, slots=True)
class CofiringFeature:
    """A feature that is active on the same tokens as another one.

    ``phi`` is the correlation of "active" between both, 0 to 1; ``tokens``: how often both are active.
    """

    index: int
    phi: float
    tokens: int
    label: str


@dataclass(frozen=True, slots=True)
class CofiringFeatures:
    """The features that fire with another one, the largest phi first, counted on ``num_tokens`` tokens."""

    num_tokens: int
    features: tuple[CofiringFeature, ...]


def find_cofiring(feature: Feature) -> CofiringFeatures | None:
    """Return the features that fire with one, by its last measurement; None if none has measured it."""
    if feature.cofiring is None:
        return None
    rows = feature.cofiring["features"]
    others = Feature.objects.filter(sae_id=feature.sae_id, index__in=[row[0] for row in rows])
    labels = dict(others.values_list("index", "label"))
    found = tuple(CofiringFeature(index, phi, tokens, labels.get(index, "")) for index, phi, tokens in rows)
    return CofiringFeatures(feature.cofiring["num_tokens"], found)


def find_neighbours(sae: int, source: SAESource, index: int, count: int) -> list[NeighbourFeature]:
    """Return the ``count`` features whose decoder rows have the largest cosine with a feature's, largest first.

    ``sae`` is the primary key. Loads the SAE if necessary. Raise SAEUnavailableError if its weights are not available.
    """
    import torch

    with torch.inference_mode(), borrowed_workers():
        rows = get_compiler().load_reader(source).weights.W_dec
        cosines = _cosines(rows, rows[index])
        cosines[index] = -2.0
        near = _largest(cosines, min(count, len(rows) - 1))
    return _labelled(sae, near)


def find_features_near(sae: int, source: SAESource, vector: bytes, count: int) -> list[NeighbourFeature]:
    """Return the ``count`` features whose decoder rows have the largest cosine with a vector, largest first.

    ``vector`` holds as many numbers as a decoder row, as float32. See :func:`find_neighbours` for the rest.
    """
    import torch

    with torch.inference_mode(), borrowed_workers():
        rows = get_compiler().load_reader(source).weights.W_dec
        direction = torch.frombuffer(bytearray(vector), dtype=torch.float32).to(rows)
        near = _largest(_cosines(rows, direction), min(count, len(rows)))
    return _labelled(sae, near)


def _cosines(rows: Tensor, direction: Tensor) -> Tensor:
    import torch

    norms = torch.linalg.vector_norm(rows, dim=-1).clamp_min(1e-8)
    cosines: Tensor = rows @ (direction / torch.linalg.vector_norm(direction).clamp_min(1e-8)) / norms
    return cosines


def _largest(cosines: Tensor, count: int) -> dict[int, float]:
    found = cosines.topk(count)
    return dict(zip(found.indices.tolist(), found.values.tolist(), strict=True))


def _labelled(sae: int, near: dict[int, float]) -> list[NeighbourFeature]:
    labels = dict(Feature.objects.filter(sae_id=sae, index__in=near).values_list("index", "label"))
    return [NeighbourFeature(place, cosine, labels.get(place, "")) for place, cosine in near.items()]
