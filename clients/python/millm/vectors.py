"""Steering vectors: directions in the residuals of a layer, and how they are found from pairs of texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millm.directions import Method, cosine, direction, halves_cosine, held_out_auc
from millm.places import RESID_POST, Site
from millm.steering import Edit
from millm.tensors import read_safetensors, write_safetensors

Array = NDArray[np.float32]

SINK_FACTOR = 10.0  # a token whose residual is longer than this many medians is an attention sink
FORMAT = "millm.vectors"


@dataclass(frozen=True, eq=False)
class SteeringVector:
    """A direction ``[d]`` float32 at a site. Adding it once is a strength of 1.

    ``reference_norm``: the mean norm of the residuals there, for :attr:`relative_size`; None if unknown.
    """

    values: Array = field(repr=False)
    layer: int
    site: str = RESID_POST
    reference_norm: float | None = None

    def __post_init__(self) -> None:
        values = np.array(self.values, np.float32)  # a copy: the caller's may change
        if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
            raise ValueError(f"`values` must be finite numbers of the shape [d], got the shape {values.shape}.")
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    @property
    def norm(self) -> float:
        return float(np.linalg.norm(self.values))

    @property
    def relative_size(self) -> float | None:
        """The norm divided by the mean norm of the residuals. 0.2 to 0.6 usually has a visible effect."""
        return None if self.reference_norm is None else self.norm / self.reference_norm

    def resized(self, relative_size: float) -> SteeringVector:
        """Return the vector at another relative size. Raise ValueError if the reference norm is unknown."""
        if self.reference_norm is None:
            raise ValueError("The vector has no `reference_norm`, so its relative size is unknown.")
        return self * (relative_size * self.reference_norm / self.norm)

    def at(self, layer: int, site: str = RESID_POST) -> SteeringVector:
        """Return the same direction at another site. The reference norm there is unknown."""
        return replace(self, layer=layer, site=site, reference_norm=None)

    def edit(self, strength: float = 1.0, operation: str = "add", **conditions: Any) -> Edit:
        """Return an edit for :meth:`Millm.chat` and others.

        ``operation``: ``add`` (``strength`` times the vector), ``orthogonal`` (scale the residual's part along it by
        ``strength``; 0 removes it) or ``projection_cap``. ``conditions``: ``phase``, ``window``, ``ranges``, ``scope``,
        ``special_tokens``, ``sink_tokens`` ... as in docs/steering.md.
        """
        place = {"layer": self.layer, "site": self.site}
        return {**place, "values": self.values, "operation": operation, "strength": strength, **conditions}

    def edits(self) -> list[Edit]:
        """Return the edit that adds the vector once. So a vector can be passed as ``vector=``."""
        return [self.edit()]

    def removed_at(self, layers: Sequence[int], **conditions: Any) -> list[Edit]:
        """Return edits that remove the direction from the outputs of these layers (directional ablation, Arditi et al.
        2024)."""
        return [self.at(layer).edit(0.0, "orthogonal", **conditions) for layer in layers]

    def cosine(self, other: SteeringVector) -> float:
        return cosine(self.values, other.values)

    def __mul__(self, factor: float) -> SteeringVector:
        return replace(self, values=self.values * np.float32(factor))

    __rmul__ = __mul__

    def __neg__(self) -> SteeringVector:
        return self * -1.0

    def save(self, path: str | Path) -> None:
        """Write a safetensors file that :func:`load_vectors` and miLLM read."""
        save_vectors(path, [self])


@dataclass(frozen=True)
class LayerFit:
    """How well a direction at one layer separates the two sides.

    ``auc``: of projections of held-out pairs (0.5 is chance, 1 is perfect). ``halves_cosine``: the cosine between the
    directions of two halves of the pairs.
    """

    layer: int
    auc: float
    halves_cosine: float
    norm: float
    relative_size: float


@dataclass(frozen=True, eq=False)
class FittedVectors(Mapping[int, SteeringVector]):
    """Vectors from pairs of texts, by layer. Can be passed as ``vector=``: then the best layer's is added once.

    ``rows`` is the layer sweep. ``layer`` is the best layer: the one with the largest held-out AUC, and among equal
    ones with the largest cosine between halves.
    """

    method: Method
    num_pairs: int
    rows: tuple[LayerFit, ...]
    vectors: Mapping[int, SteeringVector] = field(repr=False)

    def __getitem__(self, layer: int) -> SteeringVector:
        return self.vectors[layer]

    def __iter__(self) -> Iterator[int]:
        return iter(self.vectors)

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def layer(self) -> int:
        return max(self.rows, key=lambda row: (np.nan_to_num(row.auc), np.nan_to_num(row.halves_cosine))).layer

    @property
    def best(self) -> SteeringVector:
        """The vector of the best layer."""
        return self.vectors[self.layer]

    def edits(self) -> list[Edit]:
        return self.best.edits()

    def save(self, path: str | Path) -> None:
        """Write the vectors of all layers to a safetensors file that :func:`load_vectors` and miLLM read."""
        save_vectors(path, list(self.vectors.values()))

    def __str__(self) -> str:
        lines = ["layer    AUC  cosine of halves    norm  relative size"]
        for row in self.rows:
            mark = "  best" if row.layer == self.layer else ""
            figures = f"{row.auc:5.3f}  {row.halves_cosine:16.3f}  {row.norm:6.2f}  {row.relative_size:13.3f}"
            lines.append(f"{row.layer:5d}  {figures}{mark}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class PairResiduals:
    """What vectors are computed from, at one site. ``positive``, ``negative``: ``[pairs, d]``."""

    site: Site
    positive: Array
    negative: Array
    reference_norm: float


def fit_vectors(pairs: Sequence[PairResiduals], method: Method, *, folds: int, seed: int) -> FittedVectors:
    """Fit one vector for each site, on all pairs; the AUC is that of fits on the other folds."""
    rows, vectors = [], {}
    for one in pairs:
        positive, negative = one.positive.astype(np.float64), one.negative.astype(np.float64)
        values = direction(positive, negative, method).astype(np.float32)
        vector = SteeringVector(values, one.site.layer, one.site.site, one.reference_norm)
        rows.append(
            LayerFit(
                layer=one.site.layer,
                auc=held_out_auc(positive, negative, method, folds=folds, seed=seed),
                halves_cosine=halves_cosine(positive, negative, method, seed=seed),
                norm=vector.norm,
                relative_size=vector.norm / one.reference_norm,
            )
        )
        vectors[one.site.layer] = vector
    return FittedVectors(method, len(pairs[0].positive), tuple(rows), vectors)


def ordinary(rows: Array) -> Array:
    """Return the rows ``[tokens, d]`` that are no attention sinks: at most ten times as long as the median."""
    norms = np.linalg.norm(rows, axis=1)
    found: Array = rows[norms <= SINK_FACTOR * np.median(norms)]
    return found


def save_vectors(path: str | Path, vectors: Sequence[SteeringVector]) -> None:
    """Write vectors of the outputs of different layers to a safetensors file. Raise ValueError for other sites."""
    Path(path).write_bytes(vector_file(vectors))


def vector_file(vectors: Sequence[SteeringVector]) -> bytes:
    """Return the content of a safetensors file with a tensor ``direction.LAYER`` for each vector."""
    if others := sorted({vector.site for vector in vectors if vector.site != RESID_POST}):
        raise ValueError(f"Files hold vectors of {RESID_POST}, not of {', '.join(others)}.")
    if len({vector.layer for vector in vectors}) < len(vectors):
        raise ValueError("Files hold one vector for each layer.")
    norms = {
        f"reference_norm.{vector.layer}": repr(vector.reference_norm)
        for vector in vectors
        if vector.reference_norm is not None
    }
    tensors = {f"direction.{vector.layer}": vector.values for vector in vectors}
    return write_safetensors(tensors, {"format": FORMAT, **norms})


def load_vectors(path: str | Path) -> dict[int, SteeringVector]:
    """Read a file of :meth:`SteeringVector.save`, by layer. Other safetensors files need names ending in ``.LAYER``."""
    tensors, metadata = read_safetensors(Path(path).read_bytes())
    found = {}
    for name, values in tensors.items():
        layer = name.rpartition(".")[2]
        if not layer.isdecimal():
            raise ValueError(f"The name of the tensor `{name}` does not end with the number of a layer.")
        norm = metadata.get(f"reference_norm.{layer}")
        found[int(layer)] = SteeringVector(values, int(layer), reference_norm=None if norm is None else float(norm))
    return found
