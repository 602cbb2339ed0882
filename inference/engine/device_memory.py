"""How much memory a device has, and how much of it can still be taken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes. ``total`` is what this process may use at most, ``free`` what nobody uses now."""

    total: int
    free: int


def device_memory(device: torch.device) -> DeviceMemory:
    """Of a CUDA device, or of this machine within the limits of the process' control group."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return DeviceMemory(total, free + cached)  # torch takes from what it has reserved first
    return machine_memory()


def machine_memory(cgroup: Path = CGROUP) -> DeviceMemory:
    memory = psutil.virtual_memory()
    limited = _cgroup_memory(cgroup)
    if limited is None:
        return DeviceMemory(memory.total, memory.available)
    return DeviceMemory(min(memory.total, limited.total), min(memory.available, limited.free))


def _cgroup_memory(root: Path) -> DeviceMemory | None:
    """The limit that containers have, version 2 or 1; None without one. Page cache that can be dropped is free."""
    for limit_name, used_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _number(root / limit_name), _number(root / used_name)
        if limit is not None and used is not None:
            stat = (root / limit_name).parent / "memory.stat"
            return DeviceMemory(limit, max(0, limit - used + _stat(stat, cache_name)))
    return None


def _number(file: Path) -> int | None:
    """None where the file is missing or says ``max``."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _stat(file: Path, name: str) -> int:
    try:
        rows = dict(line.split(maxsplit=1) for line in file.read_text().splitlines())
        return int(rows.get(name, 0))
    except (OSError, ValueError):
        return 0
