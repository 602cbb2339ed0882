"""Which models are loaded, whether another one fits beside them, and which are unloaded for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.client import EngineError
from inference.files.architectures import ModelKind
from inference.text.model_text import ModelText

if TYPE_CHECKING:
    from inference.engine.cache.device_memory import DeviceMemory
    from inference.engine.models.loader import LoadedModel
    from inference.engine.models.memory_estimate import MemoryEstimate


@dataclass(slots=True)
class LoadedEntry:
    """``reserved_bytes`` is what it was given on its device, keys and values included; ``used_at`` a reading of the
    registry's clock. One that ``is_leaving`` finishes what it runs and takes nothing more.
    """

    pk: int
    name: str
    loaded: LoadedModel
    text: ModelText
    kind: ModelKind
    reserved_bytes: int
    used_at: float
    is_leaving: bool = False


class LoadedModels:
    """By name. Written by the loader thread only; each method is one step on a dictionary, so any thread may read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_name: dict[str, LoadedEntry] = {}

    def __contains__(self, name: str) -> bool:
        """Whether it takes requests."""
        entry = self._by_name.get(name)
        return entry is not None and not entry.is_leaving

    def add(self, entry: LoadedEntry) -> None:
        self._by_name[entry.name] = entry

    def remove(self, name: str) -> LoadedEntry | None:
        return self._by_name.pop(name, None)

    def get(self, name: str) -> LoadedEntry | None:
        return self._by_name.get(name)

    def use(self, name: str) -> LoadedEntry | None:
        """The model, which is the most recently used one from now on; None of one that takes no requests."""
        entry = self._by_name.get(name)
        if entry is None or entry.is_leaving:
            return None
        entry.used_at = self._clock()
        return entry

    def idle_s(self, entry: LoadedEntry) -> float:
        return self._clock() - entry.used_at

    def all(self) -> list[LoadedEntry]:
        """Least recently used first."""
        return sorted(self._by_name.copy().values(), key=lambda entry: entry.used_at)


GIB = 2**30
LEAST_SHARES = 2  # into which spare memory is cut: a model that is not registered yet shall find some


class InsufficientMemoryError(EngineError):
    """The model needs more memory than there is, even without the models that may be unloaded for it."""

    code = "model_load_failed"


class ModelsBusyError(InsufficientMemoryError):
    """There will be room once models have ended what they run now."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a model needs on its device, the bytes free there, and the models on it that may be asked to go, least
    recently used first.

    One account holds it all: ``budget`` is for weights, for keys and values, and for the intermediate results of one
    step of all models on the device.
    """

    name: str
    device: str
    estimate: MemoryEstimate
    free: int
    budget: int
    unpinned: Sequence[LoadedEntry]

    @property
    def needed(self) -> int:
        """The least."""
        return self.estimate.total

    def kv_bytes(self, wanted: int, num_expected: int) -> int:
        """Bytes for keys and values of a model that fits: those ``wanted``, or, with 0, its least and a share of what
        is spare beyond its needs. ``num_expected`` models, this one included, are registered and not loaded.
        """
        if wanted:
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
            raise ModelsBusyError(f"{text} Others could make room, but are at work: {', '.join(busy)}.")
        chosen: list[LoadedEntry] = []
        for entry in idle:
            if self.needed <= self.free + _size(chosen):
                break
            chosen.append(entry)
        return chosen

    def __str__(self) -> str:
        return (
            f"needs about {gibibytes(self.needed)}: {self._parts()}; {gibibytes(self.free)} are free on {self.device}, "
            f"where all models together may take {gibibytes(self.budget)}"
        )

    def _refusal(self, available: int) -> str:
        return (
            f"{self.name} needs about {gibibytes(self.needed)} of memory on {self.device}, and "
            f"{gibibytes(available)} can be had for it (the budget is {gibibytes(self.budget)}). "
            f"It needs {self._parts()}. "
            "Choose a smaller dtype or context length, unload or unpin another model, lower MILLM_KV_CACHE_BYTES or "
            "raise MILLM_MEMORY_BUDGET."
        )

    def _parts(self) -> str:
        estimate = self.estimate
        return (
            f"{gibibytes(estimate.weights)} for weights, {gibibytes(estimate.kv)} at least for keys and values, "
            f"{gibibytes(estimate.activations)} for a step"
        )


def gibibytes(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB // 100 else f"{num_bytes / 2**20:.2f} MiB"


def _size(entries: Sequence[LoadedEntry]) -> int:
    return sum(entry.reserved_bytes for entry in entries)


SHARE = 0.9  # of a device, where no limit is set: the rest is the system's and the server's own


def measure_device(device: str) -> DeviceMemory:
    """Imports torch."""
    import torch

    from inference.engine.cache.device_memory import device_memory

    return device_memory(torch.device(device))


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """``limit`` is in bytes for each device; 0 takes SHARE of what the device has."""

    limit: int = 0
    measure: Callable[[str], DeviceMemory] = measure_device

    def size(self, device: str) -> int:
        return self.limit or int(self.measure(device).total * SHARE)

    def available(self, device: str, reserved_bytes: int, unwritten_bytes: int = 0) -> int:
        """Bytes that another model may take beside models that were given ``reserved_bytes``, of which they have not
        taken ``unwritten_bytes`` from the device yet.
        """
        memory = self.measure(device)
        size = self.limit or int(memory.total * SHARE)
        return max(0, min(size - reserved_bytes, memory.free - unwritten_bytes))
