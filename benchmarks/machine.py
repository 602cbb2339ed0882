"""The machine on which the figures were measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

PACKAGES = ("torch", "transformers", "tokenizers", "django")


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cores: int
    memory_gib: float
    accelerator: str
    threads: int
    python: str
    versions: dict[str, str]
    commit: str
    date: str

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def this_machine() -> Machine:
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(_proc_number("/proc/meminfo", "MemTotal:") / 2**20, 1),
        accelerator=torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        versions={name: version for name in PACKAGES if (version := _version(name))},
        commit=_commit(),
        date=datetime.now(UTC).date().isoformat(),
    )


def instruction_set() -> str:
    """Return the widest instructions of this processor that matter for products: avx2, avx512, avx512_bf16 or amx."""
    capability = torch.backends.cpu.get_cpu_capability()
    if torch.cpu._is_amx_tile_supported():
        return "amx"
    if torch.cpu._is_avx512_bf16_supported():
        return "avx512_bf16"
    return str(capability).lower().replace("default", "baseline")


def peak_memory_mb(pid: int | str = "self") -> float | None:
    """Return the peak resident set size of a process on this machine, or None if it cannot be read."""
    try:
        return _proc_number(f"/proc/{pid}/status", "VmHWM:") / 1024
    except (OSError, ValueError):
        return None


def _proc_number(path: str, name: str) -> float:
    """Return the number in a line such as ``VmHWM:  1234 kB``."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return float(line.split()[1])
    raise ValueError(f"{path} has no line `{name}`.")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    """Return the current commit, read from .git without running git; empty outside a clone."""
    git = Path(__file__).resolve().parent.parent / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if head.startswith("ref: "):
            head = (git / head.removeprefix("ref: ")).read_text().strip()
    except OSError:
        return ""
    return head[:12]
