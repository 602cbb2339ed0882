"""Measure the memory of a device, and watch for a shortage."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath

import torch

from inference.engine.cache.policy import Growth
from inference.engine.models.facts import DeviceMemory

logger = logging.getLogger(__name__)
CHECK_S = 0.1
RESERVE_SHARE = 0.02  # of the memory that this process may use
MIN_RESERVE, MAX_RESERVE = 64 * 2**20, 512 * 2**20
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


class MemoryWatch:
    """Detects that system memory runs out while sequences run.

    The KV cache takes memory from the system when it is first written. Other processes may have taken it meanwhile, or
    the limit of a control group may have been lowered, and the kernel would kill this process.
    """

    def __init__(
        self, measure: Callable[[], DeviceMemory] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._measure = measure or machine_memory
        self._clock = clock
        self._checked_at = -CHECK_S
        self._growth = Growth.FREE

    def growth(self) -> Growth:
        """Return which sequences may take more memory.

        Restricted from when less than the reserve is free until twice as much is free; none while less than a quarter
        of it is free.
        """
        now = self._clock()
        if now - self._checked_at >= CHECK_S:
            self._checked_at = now
            self._note(self._measure())
        return self._growth

    def _note(self, memory: DeviceMemory) -> None:
        reserve = min(max(MIN_RESERVE, int(memory.total * RESERVE_SHARE)), MAX_RESERVE)
        before = self._growth
        if memory.free < reserve // 4:
            self._growth = Growth.HELD
        elif memory.free < reserve * (1 if before is Growth.FREE else 2):
            self._growth = Growth.ALONE
        else:
            self._growth = Growth.FREE
        if self._growth is not before:
            tell = logger.info if self._growth is Growth.FREE else logger.warning
            free, total = memory.free >> 20, memory.total >> 20
            tell(
                "%d of %d MiB of memory are free. Sequences that may grow the KV cache: %s.",
                free,
                total,
                self._growth.value,
            )


def device_memory(device: torch.device) -> DeviceMemory:
    """Return the memory of a CUDA device, or of this machine within the limits of its control groups."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return DeviceMemory(total, free + cached)  # torch uses its reserved memory first
    return machine_memory()


def machine_memory(cgroups: Path = CGROUPS, own_cgroup: Path = OWN_CGROUP) -> DeviceMemory:
    """Return the smallest limit of the machine, the process' control group, and the groups around it (a container)."""
    found = [_whole_machine()]
    found += [limited for group in _groups(cgroups, own_cgroup) if (limited := _group_memory(group)) is not None]
    return DeviceMemory(min(each.total for each in found), min(each.free for each in found))


def _whole_machine() -> DeviceMemory:
    try:
        import psutil  # may be missing on a machine that only runs benchmarks
    except ImportError:
        page = os.sysconf("SC_PAGE_SIZE")
        return DeviceMemory(page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES"))
    memory = psutil.virtual_memory()
    return DeviceMemory(memory.total, memory.available)


def _groups(cgroups: Path, own_cgroup: Path) -> list[Path]:
    """Return the roots of both versions, and in each the process' own group with its parents.

    A line of ``own_cgroup`` is ``0::/a/b`` for version 2 and ``4:memory:/a/b`` for the memory controller of version 1.
    """
    groups = [cgroups, cgroups / "memory"]
    with suppress(OSError):
        for line in own_cgroup.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" or "memory" in controllers.split(","):
                inner = PurePosixPath(path.strip().lstrip("/"))
                root = cgroups / "memory" if controllers else cgroups
                groups += [root / group for group in (inner, *inner.parents) if group.name]
    return groups


def _group_memory(group: Path) -> DeviceMemory | None:
    """Return a group's memory; None without a limit. Page cache counts as free."""
    for limit_name, used_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _number(group / limit_name), _number(group / used_name)
        if limit is not None and used is not None:
            return DeviceMemory(limit, max(0, limit - used + _stat(group / "memory.stat", cache_name)))
    return None


def _number(file: Path) -> int | None:
    """Return the number in a file; None if it is missing or contains ``max``."""
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
