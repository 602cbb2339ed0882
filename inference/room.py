"""Whether a model fits beside the others, and which of them go for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.client import EngineError
from inference.residents import Resident

if TYPE_CHECKING:
    from inference.engine.memory import MemoryEstimate

GIB = 2**30
LEAST_SHARES = 2  # into which spare memory is cut: a model that is not registered yet shall find some


class NoRoomError(EngineError):
    """The model needs more memory than there is, even without the models that may be unloaded for it."""

    code = "model_load_failed"


class AllBusyError(NoRoomError):
    """There will be room once models have ended what they run now."""


@dataclass(frozen=True, slots=True)
class Room:
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
    unpinned: Sequence[Resident]

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

    def choose(self, is_busy: Callable[[str], bool]) -> list[Resident]:
        """Those that must go, none if it fits. NoRoomError with both numbers; then nobody has to go in vain."""
        idle = [resident for resident in self.unpinned if not is_busy(resident.name)]
        if self.needed > self.free + _size(self.unpinned):
            raise NoRoomError(self._refusal(self.free + _size(self.unpinned)))
        if self.needed > self.free + _size(idle):
            busy = [resident.name for resident in self.unpinned if resident not in idle]
            text = self._refusal(self.free + _size(idle))
            raise AllBusyError(f"{text} Others could make room, but are at work: {', '.join(busy)}.")
        chosen: list[Resident] = []
        for resident in idle:
            if self.needed <= self.free + _size(chosen):
                break
            chosen.append(resident)
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


def _size(residents: Sequence[Resident]) -> int:
    return sum(resident.reserved_bytes for resident in residents)
