"""What a thread has lent from OpenMP is given back: no worker stays behind that nobody needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inference import torch_threads

# In a process of its own, whose threads can be counted.
PROGRAM = """
import os, torch
from inference.torch_threads import borrowed_workers
def count(): return len(os.listdir("/proc/self/task"))
torch.set_num_threads(4)
before = count()
with borrowed_workers():
    torch.ones(1 << 20).sum()
    inside = count()
print(before, inside, count())
torch.ones(1 << 20).sum()
print(torch.ones(1 << 20).sum().item(), count())
"""


@pytest.mark.skipif(torch_threads._libgomp() is None, reason="this torch has another OpenMP")
def test_workers_are_given_back_and_come_again():
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "4"},
    )
    (before, inside, after), (total, again) = (map(float, line.split()) for line in found.stdout.splitlines())
    assert inside == before + 3
    assert after == before
    assert (total, again) == (1 << 20, inside)


def test_giving_back_what_was_never_taken_does_nothing():
    torch_threads.give_back_workers()
    torch_threads.give_back_workers()
    assert torch.ones(1 << 20).sum() == 1 << 20
