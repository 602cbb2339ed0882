"""Loaded models, whether another one fits in memory beside them, and which to unload for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inference.client import EngineError
from inference.files.architectures import ModelKind
from inference.registry.media import LoadedMedia
from inference.text.model_text import ModelText

if TYPE_CHECKING:
    from inference.engine.models.facts import DeviceMemory, LoadedFacts, MemoryEstimate
    from inference.engine.models.loader import LoadedModel


_numbers = itertools.count(1)


@dataclass(slots=True)
class LoadedEntry:
    """A loaded model. ``reserved_bytes``: its share of the device memory, KV cache included. ``used_at``: a time of the
    registry's clock. A model that ``is_leaving`` finishes its requests and accepts no more. ``number``: of this load.
    """

    pk: int
    name: str
    loaded: LoadedModel | LoadedFacts | LoadedMedia
    text: ModelText | None  # of a text model
    kind: ModelKind
    reserved_bytes: int
    used_at: float
    is_leaving: bool = False
    number: int = field(default_factory=_numbers.__next__)


class LoadedModels:
    """Loaded models by name. Written by the loader thread only; readable by any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_name: dict[str, LoadedEntry] = {}

    def __contains__(self, name: str) -> bool:
        """Return whether the model is loaded and accepts requests."""
        entry = self._by_name.get(name)
        return entry is not None and not entry.is_leaving

    def add(self, entry: LoadedEntry) -> None:
        self._by_name[entry.name] = entry

    def remove(self, name: str) -> LoadedEntry | None:
        return self._by_name.pop(name, None)

    def get(self, name: str) -> LoadedEntry | None:
        return self._by_name.get(name)

    def use(self, name: str) -> LoadedEntry | None:
        """Return the model and mark it as used now. None if it does not accept requests."""
        entry = self._by_name.get(name)
        if entry is None or entry.is_leaving:
            return None
        entry.used_at = self._clock()
        return entry

    def idle_s(self, entry: LoadedEntry) -> float:
        return self._clock() - entry.used_at

    def all(self) -> list[LoadedEntry]:
        """Return all entries, least recently used first."""
        return sorted(self._by_name.copy().values(), key=lambda entry: entry.used_at)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model will be loaded. ``memory``: None: as the budget measures it. ``elsewhere``: names of models
    that use other memory.
    """

    memory: DeviceMemory | None = None
    elsewhere: frozenset[str] = frozenset()


GIB = 2**30
LEAST_SHARES = 2  # of the spare memory, so that models registered later fit as well


class InsufficientMemoryError(EngineError):
    """The model does not fit, even if all models that may be unloaded were unloaded."""

    code = "model_load_failed"


class ModelsBusyError(InsufficientMemoryError):
    """The model will fit once busy models have finished their requests and can be unloaded."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory that a model needs on its device, the free bytes there, and the models that may be unloaded for it,
    least recently used first.

    ``budget`` covers all models on the device: weights, KV caches, and the activations of one step.
    """

    name: str
    device: str
    estimate: MemoryEstimate
    free: int
    budget: int
    unpinned: Sequence[LoadedEntry]

    @property
    def needed(self) -> int:
        """Return the minimum number of bytes."""
        return self.estimate.total

    def kv_bytes(self, requested: int, num_expected: int) -> int:
        """Return the size of the KV cache for a model that fits.

        ``requested`` 0 means the minimum plus a share of the memory that is left. ``num_expected`` models, including
        this one, are registered and not loaded.
        """
        if requested:
            return self.estimate.kv
        spare = max(0, self.free - self.needed)
        return min(self.estimate.most_kv, self.estimate.kv + spare // max(LEAST_SHARES, num_expected))

    def choose(self, is_busy: Callable[[str], bool]) -> list[LoadedEntry]:
        """Return the models to unload, none if this one fits.

        Raise InsufficientMemoryError with both numbers if unloading would not help.
        """
        idle = [entry for entry in self.unpinned if not is_busy(entry.name)]
        if self.needed > self.free + _size(self.unpinned):
            raise InsufficientMemoryError(self._refusal(self.free + _size(self.unpinned)))
        if self.needed > self.free + _size(idle):
            busy = [entry.name for entry in self.unpinned if entry not in idle]
            text = self._refusal(self.free + _size(idle))
            raise ModelsBusyError(f"{text} It would fit if these busy models were unloaded: {', '.join(busy)}.")
        chosen: list[LoadedEntry] = []
        for entry in idle:
            if self.needed <= self.free + _size(chosen):
                break
            chosen.append(entry)
        return chosen

    def __str__(self) -> str:
        return (
            f"needs about {gibibytes(self.needed)}: {self._parts()}; {gibibytes(self.free)} free on {self.device}; "
            f"limit for all models: {gibibytes(self.budget)}"
        )

    def _refusal(self, available: int) -> str:
        return (
            f"{self.name} needs about {gibibytes(self.needed)} of memory on {self.device}, but at most "
            f"{gibibytes(available)} can be made available (the budget is {gibibytes(self.budget)}). It needs "
            f"{self._parts()}. Choose a smaller dtype or context length, unload or unpin another model, lower "
            "MILLM_KV_CACHE_BYTES or raise MILLM_MEMORY_BUDGET."
        )

    def _parts(self) -> str:
        estimate = self.estimate
        return (
            f"{gibibytes(estimate.weights)} for weights, at least {gibibytes(estimate.kv)} for the KV cache, "
            f"{gibibytes(estimate.activations)} for a step"
        )


def gibibytes(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB // 2 else f"{num_bytes / 2**20:.2f} MiB"


def _size(entries: Sequence[LoadedEntry]) -> int:
    return sum(entry.reserved_bytes for entry in entries)


SHARE = 0.9  # of a device without a configured limit; the rest is for the system and the server itself


def measure_device(device: str) -> DeviceMemory:
    """Return the memory of a device. Imports torch."""
    import torch

    from inference.engine.cache.device_memory import device_memory

    return device_memory(torch.device(device))


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory that all models together may use. ``limit`` is in bytes per device; 0 means SHARE of the device.

    ``num_sharing`` engines share a device, each with a part of the limit. ``measure`` returns the memory of one.
    """

    limit: int = 0
    measure: Callable[[str], DeviceMemory] = measure_device
    num_sharing: Callable[[str], int] = lambda device: 1

    def size(self, device: str, memory: DeviceMemory | None = None) -> int:
        """Return the limit of one engine on a device, with this ``memory`` if it was measured."""
        if self.limit:
            return self.limit // self.num_sharing(device)
        return int((memory or self.measure(device)).total * SHARE)

    def available(
        self, device: str, reserved_bytes: int, unwritten_bytes: int = 0, memory: DeviceMemory | None = None
    ) -> int:
        """Return the bytes available to another model.

        ``reserved_bytes`` is the memory of loaded models, of which ``unwritten_bytes`` are not allocated yet.
        """
        memory = memory or self.measure(device)
        return max(0, min(self.size(device, memory) - reserved_bytes, memory.free - unwritten_bytes))
