"""How much memory the models on one device may take together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference.engine.device_memory import DeviceMemory

SHARE = 0.9  # of a device, where no limit is set: the rest is the system's and the server's own


def measure_device(device: str) -> DeviceMemory:
    """Imports torch."""
    import torch

    from inference.engine.device_memory import device_memory

    return device_memory(torch.device(device))


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """``limit`` is in bytes for each device; 0 takes SHARE of what the device has."""

    limit: int = 0
    measure: Callable[[str], DeviceMemory] = measure_device

    def size(self, device: str) -> int:
        return self.limit or int(self.measure(device).total * SHARE)

    def room(self, device: str, reserved_bytes: int, unwritten_bytes: int = 0) -> int:
        """Bytes that another model may take beside models that were given ``reserved_bytes``, of which they have not
        taken ``unwritten_bytes`` from the device yet.
        """
        memory = self.measure(device)
        size = self.limit or int(memory.total * SHARE)
        return max(0, min(size - reserved_bytes, memory.free - unwritten_bytes))
