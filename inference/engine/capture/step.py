"""One forward pass under reads: whose tokens are read where, and what was found.

Reads of several sequences that ask the same of a site are one: their rows are gathered and encoded together, some at a
time, so that a wide SAE needs no more memory than :data:`MAX_ENCODED` numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference.captures import AllFeatures, FeatureValues, Pooling, Probe, Read, Residuals, Stage, TopFeatures
from inference.engine.capture.sequence import Found
from inference.engine.scheduling.scheduler import Chunk
from inference.engine.scheduling.sequence import Sequence
from inference.interventions import Site

MAX_ENCODED = 1 << 24


@dataclass(frozen=True, slots=True)
class Wish:
    """One read of one sequence in a step: ``rows`` of the packed step, which are ``places`` of the sequence."""

    sequence: Sequence
    number: int
    read: Read
    rows: list[int]
    places: tuple[int, ...]


@dataclass(slots=True)
class ReadingStep:
    """The wishes of a step by site, stage and what they have in common; the hooks fill in the rest."""

    wishes: dict[tuple[Site, Stage], dict[Hashable, list[Wish]]]
    _seen: list[tuple[list[Wish], Tensor, Tensor | None]] = field(default_factory=list)

    def look(self, site: Site, stage: Stage, hidden: Tensor) -> None:
        """Called by the hooks with the site's ``[..., d]`` hidden states."""
        for wishes in self.wishes.get((site, stage), {}).values():
            self._seen.append((wishes, *_read(wishes, hidden.reshape(-1, hidden.shape[-1]))))

    def found(self) -> dict[Sequence, list[Found]]:
        """By sequence; RuntimeError where a hook did not run that should have."""
        by_sequence: dict[Sequence, list[Found]] = {}
        num_seen = 0
        for wishes, values, features in self._seen:
            num_seen += 1
            for wish, found in zip(wishes, _split(wishes, values.cpu(), features), strict=True):
                by_sequence.setdefault(wish.sequence, []).append(found)
        if num_seen != sum(map(len, self.wishes.values())):
            raise RuntimeError("A site that was to be read was not passed, or more than once.")
        return by_sequence


def plan_reading(chunks: Iterable[Chunk]) -> ReadingStep | None:
    """None where no token of the step is read."""
    wishes: dict[tuple[Site, Stage], dict[Hashable, list[Wish]]] = {}
    first = 0
    for chunk in chunks:
        if chunk.sequence.reading is not None:
            for wish in _wishes(chunk, first):
                at = wishes.setdefault((wish.read.site, wish.read.stage), {})
                at.setdefault(_shared(wish.read), []).append(wish)
        first += chunk.num_tokens
    return ReadingStep(wishes) if wishes else None


def _wishes(chunk: Chunk, first: int) -> Iterator[Wish]:
    sequence, reading = chunk.sequence, chunk.sequence.reading
    assert reading is not None, "the caller looked"
    start = sequence.num_computed
    tokens = [*sequence.token_ids[start : start + chunk.num_own], *chunk.drafts]
    for number, read in enumerate(reading.reads):
        places = reading.places(read, tokens, start)
        if places:
            yield Wish(sequence, number, read, [first + place - start for place in places], tuple(places))


def _shared(read: Read) -> Hashable:
    """Reads at one place with the same of these are read in one go."""
    probe = read.probe
    match probe:
        case Residuals():
            return (Residuals, read.pooling)
        case FeatureValues():
            return (FeatureValues, read.pooling, probe.reader.key, probe.features)
        case _:
            return (type(probe), read.pooling, probe.reader.key)


# In the forward pass


def _read(wishes: list[Wish], hidden: Tensor) -> tuple[Tensor, Tensor | None]:
    """Values, and indices of the strongest features, of all wishes' rows; or one row of values for each pooled wish."""
    device = hidden.device
    rows = torch.tensor([row for wish in wishes for row in wish.rows], device=device)
    probe = _widest([wish.read.probe for wish in wishes])
    at_once = max(1, MAX_ENCODED // (hidden.shape[1] if isinstance(probe, Residuals) else probe.reader.d_sae))
    parts = [_values(probe, hidden[some].float()) for some in torch.split(rows, at_once)]
    pooling = wishes[0].read.pooling
    if pooling == "none":
        features = torch.cat([f for _, f in parts if f is not None]) if isinstance(probe, TopFeatures) else None
        return torch.cat([values for values, _ in parts]), features
    owners = torch.tensor([owner for owner, wish in enumerate(wishes) for _ in wish.rows], device=device)
    return _pooled(pooling, [values for values, _ in parts], torch.split(owners, at_once), len(wishes)), None


def _widest(probes: list[Probe]) -> Probe:
    """Of several that ask for their strongest features, the one that wants most."""
    return max(probes, key=lambda probe: probe.count if isinstance(probe, TopFeatures) else 0)


def _values(probe: Probe, h: Tensor) -> tuple[Tensor, Tensor | None]:
    match probe:
        case Residuals():
            return h, None
        case FeatureValues():
            return probe.reader.activations(h, torch.tensor(probe.features, device=h.device)), None
        case AllFeatures():
            return probe.reader.encode(h), None
        case TopFeatures():
            best = probe.reader.encode(h).topk(min(probe.count, probe.reader.d_sae), dim=-1)
            return best.values, best.indices


def _pooled(pooling: Pooling, parts: list[Tensor], owners: tuple[Tensor, ...], num_owners: int) -> Tensor:
    """One row for each owner: the sum in float64 for a mean, the largest of each column, or the last row."""
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


# After it


def _split(wishes: list[Wish], values: Tensor, features: Tensor | None) -> Iterator[Found]:
    if wishes[0].read.pooling != "none":
        for row, wish in enumerate(wishes):
            yield Found(wish.number, wish.places, values[row : row + 1].numpy())
        return
    indices = None if features is None else features.cpu()
    first = 0
    for wish in wishes:
        last = first + len(wish.rows)
        if indices is None:
            yield Found(wish.number, wish.places, values[first:last].numpy())
        else:
            assert isinstance(wish.read.probe, TopFeatures), "only they have indices"
            count = wish.read.probe.count
            yield Found(
                wish.number, wish.places, values[first:last, :count].numpy(), indices[first:last, :count].numpy()
            )
        first = last
