"""Kinds of jobs that the tests bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from jobs.kinds import JobKind, Run, register, unregister
from jobs.lanes import Lane

AddKind = Callable[[Run], str]


@pytest.fixture
def add_kind() -> Iterator[AddKind]:
    """``add_kind(run)`` registers a kind for the test and gives its name."""
    names: list[str] = []

    def add(run: Run) -> str:
        names.append(f"test.{len(names)}")
        register(JobKind(names[-1], f"Test {len(names)}", run, lane=Lane.BULK))
        return names[-1]

    yield add
    for name in names:
        unregister(name)
