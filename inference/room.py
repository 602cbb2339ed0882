"""Whether a model fits beside the others, and which of them go for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference.client import EngineError
from inference.residents import Resident

GIB = 2**30


class NoRoomError(EngineError):
    """The model needs more memory than there is, even without the models that may be unloaded for it."""

    code = "model_load_failed"


class AllBusyError(NoRoomError):
    """There will be room once models have ended what they run now."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes needed and free on the device, and the models on it that may be asked to go, least recently used first."""

    name: str
    device: str
    needed: int
    free: int
    budget: int
    unpinned: Sequence[Resident]

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
            f"needs about {gibibytes(self.needed)}; {gibibytes(self.free)} are free on {self.device}, where all models "
            f"together may take {gibibytes(self.budget)}"
        )

    def _refusal(self, available: int) -> str:
        return (
            f"{self.name} needs about {gibibytes(self.needed)} of memory on {self.device}, and "
            f"{gibibytes(available)} can be had for it (the budget is {gibibytes(self.budget)}). "
            "Choose a smaller dtype or context length, unload or unpin another model, or raise MILLM_MEMORY_BUDGET."
        )


def gibibytes(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB // 100 else f"{num_bytes / 2**20:.2f} MiB"


def _size(residents: Sequence[Resident]) -> int:
    return sum(resident.reserved_bytes for resident in residents)
