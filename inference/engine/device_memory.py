"""How much memory a device has, and how much of it can still be taken."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


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


def machine_memory(cgroups: Path = CGROUPS, own_cgroup: Path = OWN_CGROUP) -> DeviceMemory:
    """The tightest of the machine, the process' control group (a service's) and those around it (a container's)."""
    found = [_whole_machine()]
    found += [limited for group in _groups(cgroups, own_cgroup) if (limited := _group_memory(group)) is not None]
    return DeviceMemory(min(each.total for each in found), min(each.free for each in found))


def _whole_machine() -> DeviceMemory:
    try:
        import psutil  # a bare GPU machine that only runs benchmarks may lack it
    except ImportError:
        page = os.sysconf("SC_PAGE_SIZE")
        return DeviceMemory(page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES"))
    memory = psutil.virtual_memory()
    return DeviceMemory(memory.total, memory.available)


def _groups(cgroups: Path, own_cgroup: Path) -> list[Path]:
    """The root, version 1's memory controller, and in version 2 (``0::/a/b``) the process' group and its parents."""
    try:
        own = next((line[3:] for line in own_cgroup.read_text().splitlines() if line.startswith("0::")), "/")
    except OSError:
        own = "/"
    inner = PurePosixPath(own.strip().lstrip("/"))
    return [cgroups, cgroups / "memory", *(cgroups / group for group in (inner, *inner.parents) if group.name)]


def _group_memory(group: Path) -> DeviceMemory | None:
    """None without a limit. Page cache that can be dropped is free."""
    for limit_name, used_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _number(group / limit_name), _number(group / used_name)
        if limit is not None and used is not None:
            return DeviceMemory(limit, max(0, limit - used + _stat(group / "memory.stat", cache_name)))
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
