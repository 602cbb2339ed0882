from __future__ import annotations

import psutil
import pytest
import torch

from inference.engine.cache.device_memory import MemoryWatch, device_memory, machine_memory
from inference.engine.cache.policy import Growth
from inference.engine.models.facts import DeviceMemory

MIB = 2**20


def write(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def test_a_machine_without_limits(tmp_path):
    memory = machine_memory(tmp_path, tmp_path / "own")

    assert memory.total == psutil.virtual_memory().total
    assert 0 < memory.free <= memory.total


@pytest.mark.parametrize(
    "files",
    [
        {"memory.max": "104857600\n", "memory.current": "62914560", "memory.stat": "anon 5\ninactive_file 10485760\n"},
        {
            "memory/memory.limit_in_bytes": "104857600",
            "memory/memory.usage_in_bytes": "62914560",
            "memory/memory.stat": "cache 3\ntotal_inactive_file 10485760\n",
        },
    ],
)
def test_a_container_s_limit_counts_and_its_page_cache_does_not(tmp_path, files):
    write(tmp_path, files)
    memory = machine_memory(tmp_path, tmp_path / "own")

    assert (memory.total, memory.free) == (100 * MIB, 50 * MIB)


def test_a_group_without_limit_is_the_machine(tmp_path):
    write(tmp_path, {"memory.max": "max\n", "memory.current": "5"})

    assert machine_memory(tmp_path, tmp_path / "own").total == psutil.virtual_memory().total


def test_a_service_s_own_limit_counts_and_so_do_those_around_it(tmp_path):
    write(
        tmp_path,
        {
            "own": "0::/system.slice/millm.service\n",
            "system.slice/memory.max": "104857600",
            "system.slice/memory.current": "62914560",
            "system.slice/millm.service/memory.max": "52428800",
            "system.slice/millm.service/memory.current": "0",
        },
    )
    memory = machine_memory(tmp_path, tmp_path / "own")

    assert (memory.total, memory.free) == (50 * MIB, 40 * MIB)


def test_an_own_limit_of_version_1_counts_too(tmp_path):
    write(
        tmp_path,
        {
            "own": "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n",
            "memory/memory.limit_in_bytes": "104857600",
            "memory/memory.usage_in_bytes": "62914560",
            "memory/docker/abc/memory.limit_in_bytes": "52428800",
            "memory/docker/abc/memory.usage_in_bytes": "0",
        },
    )
    memory = machine_memory(tmp_path, tmp_path / "own")

    assert (memory.total, memory.free) == (50 * MIB, 40 * MIB)


def test_the_device_cpu_is_the_machine():
    assert device_memory(torch.device("cpu")).total == machine_memory().total


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_that_torch_holds_back_is_free():
    device = torch.device("cuda:0")
    block = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    taken = device_memory(device).free
    del block

    assert device_memory(device).free >= taken + 250 * MIB


def test_growth_is_limited_below_a_reserve_and_until_there_is_twice_as_much(caplog):
    free, now = [500 * MIB], [0.0]
    watch = MemoryWatch(lambda: DeviceMemory(5000 * MIB, free[0]), clock=lambda: now[0])

    def after(mebibytes):
        now[0] += 1
        free[0] = mebibytes * MIB
        return watch.growth().name

    assert [after(n) for n in (500, 100, 99, 150, 200)] == ["FREE", "FREE", "ALONE", "ALONE", "FREE"]
    assert [after(n) for n in (25, 24, 25, 199, 200)] == ["ALONE", "HELD", "ALONE", "ALONE", "FREE"]
    free[0] = 0
    assert watch.growth() is Growth.FREE  # looked at a moment ago
    assert [record.levelname for record in caplog.records].count("WARNING") == 4
