"""One forward pass with captures: which tokens are captured where, and the captured values.

Captures of several sequences with the same probe at a site are combined: their rows are gathered and encoded together,
a limited number at a time, so that a wide SAE needs no more memory than :data:`MAX_ENCODED` values.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial

import torch
from torch import Tensor

from inference.captures import (
    AllFeatures,
    CaptureSpec,
    FeatureValues,
    Pooling,
    Probe,
    Projections,
    Residuals,
    Stage,
    TopFeatures,
    loaded,
)
from inference.engine.capture.sequence import CapturedRows
from inference.engine.kernels.row_tiles import RowFunction, by_tiles
from inference.engine.scheduling.scheduler import Chunk
from inference.engine.scheduling.sequence import Sequence
from inference.interventions import Site

MAX_ENCODED = 1 << 24


@dataclass(frozen=True, slots=True)
class CaptureTask:
    """A capture of one sequence in a step: ``rows`` of the packed step, which are ``places`` of the sequence."""

    sequence: Sequence
    number: int
    spec: CaptureSpec
    rows: list[int]
    places: tuple[int, ...]


@dataclass(slots=True)
class CaptureStep:
    """The tasks of a step by site, stage and shared probe. The hooks add the captured values."""

    tasks: dict[tuple[Site, Stage], dict[Hashable, list[CaptureTask]]]
    batch_invariant: bool = False
    _seen: list[tuple[list[CaptureTask], Tensor, Tensor | None]] = field(default_factory=list)

    def look(self, site: Site, stage: Stage, hidden: Tensor) -> None:
        """Capture from the site's ``[..., d]`` hidden states. Called by the hooks."""
        for tasks in self.tasks.get((site, stage), {}).values():
            flat = hidden.reshape(-1, hidden.shape[-1])
            self._seen.append((tasks, *_capture(tasks, flat, batch_invariant=self.batch_invariant)))

    def found(self) -> dict[Sequence, list[CapturedRows]]:
        """Return the captured rows by sequence. Raise RuntimeError if an expected hook did not run."""
        by_sequence: dict[Sequence, list[CapturedRows]] = {}
        num_seen = 0
        for tasks, values, features in self._seen:
            num_seen += 1
            for task, found in zip(tasks, _split(tasks, values.cpu(), features), strict=True):
                by_sequence.setdefault(task.sequence, []).append(found)
        if num_seen != sum(map(len, self.tasks.values())):
            raise RuntimeError("A hook for capturing activations did not run exactly once.")
        return by_sequence


def plan_captures(chunks: Iterable[Chunk], *, batch_invariant: bool = False) -> CaptureStep | None:
    """Return the captures of a step; None if it has none."""
    tasks: dict[tuple[Site, Stage], dict[Hashable, list[CaptureTask]]] = {}
    first = 0
    for chunk in chunks:
        if chunk.sequence.capture is not None:
            for task in _tasks(chunk, first):
                at = tasks.setdefault((task.spec.site, task.spec.stage), {})
                at.setdefault(_batch_key(task.spec), []).append(task)
        first += chunk.num_tokens
    return CaptureStep(tasks, batch_invariant) if tasks else None


def _tasks(chunk: Chunk, first: int) -> Iterator[CaptureTask]:
    sequence, capture = chunk.sequence, chunk.sequence.capture
    assert capture is not None, "the chunk's sequence has a capture"
    start = sequence.num_computed
    tokens = [*sequence.token_ids[start : start + chunk.num_own], *chunk.drafts]
    for number, spec in enumerate(capture.specs):
        places = capture.places(spec, tokens, start)
        if places:
            yield CaptureTask(sequence, number, spec, [first + place - start for place in places], tuple(places))


def _batch_key(spec: CaptureSpec) -> Hashable:
    """Return a key: tasks at the same place with equal keys are computed together."""
    probe = spec.probe
    match probe:
        case Residuals():
            return (Residuals, spec.pooling)
        case Projections():
            return (Projections, spec.pooling, probe.vectors)
        case FeatureValues():
            return (FeatureValues, spec.pooling, probe.reader.key, probe.features)
        case _:
            return (type(probe), spec.pooling, probe.reader.key)


# In the forward pass


def _capture(tasks: list[CaptureTask], hidden: Tensor, *, batch_invariant: bool) -> tuple[Tensor, Tensor | None]:
    """Return the values, and indices of top features, of all tasks' rows; or one row of values per pooled task."""
    device = hidden.device
    rows = torch.tensor([row for task in tasks for row in task.rows], device=device)
    probe = _widest([task.spec.probe for task in tasks])
    width = hidden.shape[1] if isinstance(probe, Residuals | Projections) else probe.reader.d_sae
    at_once = max(1, MAX_ENCODED // width)
    parts = [
        _values(probe, hidden[some].float(), batch_invariant=batch_invariant) for some in torch.split(rows, at_once)
    ]
    pooling = tasks[0].spec.pooling
    if pooling == "none":
        features = torch.cat([f for _, f in parts if f is not None]) if isinstance(probe, TopFeatures) else None
        return torch.cat([values for values, _ in parts]), features
    owners = torch.tensor([owner for owner, task in enumerate(tasks) for _ in task.rows], device=device)
    return _pooled(pooling, [values for values, _ in parts], torch.split(owners, at_once), len(tasks)), None


def _widest(probes: list[Probe]) -> Probe:
    """Return the probe with the largest number of top features."""
    return max(probes, key=lambda probe: probe.count if isinstance(probe, TopFeatures) else 0)


def _values(probe: Probe, h: Tensor, *, batch_invariant: bool) -> tuple[Tensor, Tensor | None]:
    if isinstance(probe, Residuals):
        return h, None
    compute = _computation(probe, h.device)
    values = by_tiles(compute, h) if batch_invariant else compute(h)
    if not isinstance(probe, TopFeatures):
        return values, None
    best = values.topk(min(probe.count, probe.reader.d_sae), dim=-1)
    return best.values, best.indices


def _computation(probe: Projections | FeatureValues | AllFeatures | TopFeatures, device: torch.device) -> RowFunction:
    match probe:
        case Projections():
            vectors = _vectors(probe, device).T
            return lambda rows: rows @ vectors
        case FeatureValues():
            return partial(loaded(probe.reader).activations, features=torch.tensor(probe.features, device=device))
        case _:
            return loaded(probe.reader).encode


@lru_cache(maxsize=64)
def _vectors(probe: Projections, device: torch.device) -> Tensor:
    """Return ``[count, d]``."""
    vectors = torch.frombuffer(bytearray(probe.vectors), dtype=torch.float32)
    return vectors.view(probe.count, -1).to(device)


def _pooled(pooling: Pooling, parts: list[Tensor], owners: tuple[Tensor, ...], num_owners: int) -> Tensor:
    """Return a row per owner: the sum in float64 for a mean, the maximum of each column, or the last row."""
    width = parts[0].shape[1]
    if pooling == "mean":
        pooled = parts[0].new_zeros(num_owners, width, dtype=torch.float64)
    else:
        pooled = parts[0].new_full((num_owners, width), float("-inf"))
    for values, of in zip(parts, owners, strict=True):
        if pooling == "mean":
            pooled.index_add_(0, of, values.double())
        elif pooling == "max":
            pooled.scatter_reduce_(0, of.unsqueeze(1).expand_as(values), values, "amax")
        else:
            last = torch.cat([of[1:] != of[:-1], of.new_ones(1, dtype=torch.bool)])
            pooled[of[last]] = values[last]
    return pooled


# After the forward pass


def _split(tasks: list[CaptureTask], values: Tensor, features: Tensor | None) -> Iterator[CapturedRows]:
    if tasks[0].spec.pooling != "none":
        for row, task in enumerate(tasks):
            yield CapturedRows(task.number, task.places, values[row : row + 1].numpy())
        return
    indices = None if features is None else features.cpu()
    first = 0
    for task in tasks:
        last = first + len(task.rows)
        if indices is None:
            yield CapturedRows(task.number, task.places, values[first:last].numpy())
        else:
            assert isinstance(task.spec.probe, TopFeatures), "only TopFeatures captures have indices"
            count = task.spec.probe.count
            yield CapturedRows(
                task.number, task.places, values[first:last, :count].numpy(), indices[first:last, :count].numpy()
            )
        first = last
