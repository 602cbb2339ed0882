"""Copies of weights in large pages are the weights, and lie where the system can grant such pages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.engine.kernels.pages import HUGE_PAGE, in_huge_pages

HAS_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("shape", [(1025, 2049), (2048, 1024), (3, 1000, 1000)])
def test_a_copy_is_equal_and_begins_with_a_page(dtype, shape):
    tensor = torch.randint(-100, 100, shape).to(dtype)
    copy = in_huge_pages(tensor)
    assert copy.is_contiguous()
    assert copy.data_ptr() % HUGE_PAGE == 0
    assert torch.equal(copy, tensor)
    copy.zero_()
    assert tensor.any(), "a copy is memory of its own"


def test_a_small_one_is_copied_too():
    tensor = torch.ones(3)
    copy = in_huge_pages(tensor)
    copy.zero_()
    assert tensor.all()


def test_a_strided_tensor_becomes_contiguous():
    tensor = torch.randn(2048, 1024).t()
    copy = in_huge_pages(tensor)
    assert copy.is_contiguous()
    assert torch.equal(copy, tensor)


@pytest.mark.skipif(not HAS_THP, reason="this system has no large pages")
def test_the_system_is_asked_for_large_pages():
    copy = in_huge_pages(torch.ones(4 * HUGE_PAGE, dtype=torch.int8))
    assert "hg" in flags_at(copy.data_ptr())


def flags_at(address: int) -> list[str]:
    """What the kernel says of the mapping that holds the address."""
    is_there = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            start, end = (int(part, 16) for part in name.split("-"))
            is_there = start <= address < end
        elif is_there and name == "VmFlags:":
            return rest.split()
    raise AssertionError("no mapping holds the address")
