"""Features with similar decoder rows."""

from __future__ import annotations

from dataclasses import dataclass

from inference.steering_refs import SAESource
from inference.torch_threads import borrowed_workers
from steering.models import Feature
from steering.profiles.compilation import get_compiler

MAX_NEIGHBOURS = 100


@dataclass(frozen=True, slots=True)
class NeighbourFeature:
    """A feature and the cosine of its decoder row with that of another one."""

    index: int
    cosine: float
    label: str


def find_neighbours(sae: int, source: SAESource, index: int, count: int) -> list[NeighbourFeature]:
    """Return the ``count`` features whose decoder rows have the largest cosine with a feature's, largest first.

    ``sae`` is the primary key. Loads the SAE if necessary. Raise SAEUnavailableError if its weights are not available.
    """
    import torch

    with torch.inference_mode(), borrowed_workers():
        rows = get_compiler().load_reader(source).weights.W_dec
        norms = torch.linalg.vector_norm(rows, dim=-1).clamp_min(1e-8)
        cosines = rows @ (rows[index] / norms[index]) / norms
        cosines[index] = -2.0
        found = cosines.topk(min(count, len(rows) - 1))
        near = dict(zip(found.indices.tolist(), found.values.tolist(), strict=True))
    labels = dict(Feature.objects.filter(sae_id=sae, index__in=near).values_list("index", "label"))
    return [NeighbourFeature(place, cosine, labels.get(place, "")) for place, cosine in near.items()]
