"""Which models go for another one, and what is said when none can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.engine.models.facts import MemoryEstimate
from inference.registry.memory_plan import (
    InsufficientMemoryError,
    LoadedEntry,
    MemoryBudget,
    MemoryPlan,
    ModelsBusyError,
    gibibytes,
)
from tests.inference.fakes import FakeDevice, FakeLoaded

GIB = 2**30


def entry(name, size):
    return LoadedEntry(1, name, FakeLoaded(name, None), None, "generation", size, 0.0)


def plan(needed, free, *unpinned):
    estimate = MemoryEstimate(needed, 0, 0)
    return MemoryPlan("new", "cpu", estimate, free, 100, [entry(name, size) for name, size in unpinned])


def names(chosen):
    return [entry.name for entry in chosen]


def test_nobody_goes_for_a_model_that_fits():
    assert plan(10, 10, ("a", 5)).choose(lambda name: False) == []


def test_the_least_recently_used_go_first_and_no_more_than_needed():
    assert names(plan(20, 10, ("old", 5), ("newer", 5), ("newest", 50)).choose(lambda name: False)) == ["old", "newer"]


def test_a_busy_model_stays():
    assert names(plan(20, 10, ("old", 50), ("newer", 10)).choose({"old"}.__contains__)) == ["newer"]


def test_nobody_goes_in_vain():
    with pytest.raises(InsufficientMemoryError) as caught:
        plan(30 * GIB, 10 * GIB, ("a", 5 * GIB)).choose(lambda name: False)

    assert not isinstance(caught.value, ModelsBusyError)
    assert caught.value.code == "model_load_failed"
    assert "new needs about 30.00 GiB of memory on cpu, but at most 15.00 GiB can be made available" in str(
        caught.value
    )


def test_busy_models_that_could_make_room_are_named():
    with pytest.raises(ModelsBusyError, match="if these busy models were unloaded: b"):
        plan(30, 10, ("a", 5), ("b", 20)).choose({"b"}.__contains__)


def test_the_parts_of_what_a_model_needs_are_told():
    needed = MemoryPlan("new", "cpu", MemoryEstimate(2 * GIB, GIB, GIB // 2), 4 * GIB, 5 * GIB, [])
    parts = "2.00 GiB for weights, at least 1.00 GiB for the KV cache, 0.50 GiB for a step"

    assert str(needed).startswith(f"needs about 3.50 GiB: {parts}; 4.00 GiB free on cpu")
    with pytest.raises(InsufficientMemoryError, match=parts):
        replace(needed, free=GIB).choose(lambda name: False)


@pytest.mark.parametrize(
    ("free", "requested", "num_expected", "expected"),
    [
        (180, 0, 1, 10 + 40),  # half of what is spare, also for the only model
        (180, 0, 4, 10 + 20),  # an equal share with those that may come
        (100, 0, 1, 10),  # nothing is spare: its least
        (9_000, 0, 2, 300),  # no more than a full batch can fill
        (9_000, 70, 1, 70),  # what is set is in the estimate
    ],
)
def test_keys_and_values_share_the_account(free, requested, num_expected, expected):
    estimate = MemoryEstimate(weights=80, kv=requested or 10, activations=10, most_kv=300)

    assert MemoryPlan("new", "cpu", estimate, free, 1000, []).kv_bytes(requested, num_expected) == expected


def test_sizes_are_readable():
    assert gibibytes(3 * GIB // 2) == "1.50 GiB"
    assert gibibytes(2**20) == "1.00 MiB"


@pytest.mark.parametrize(
    ("limit", "free", "reserved", "expected"),
    [
        (0, 1000, 0, 900),  # nine tenths of the device
        (0, 1000, 600, 300),
        (0, 200, 600, 200),  # others than models hold memory
        (500, 1000, 100, 400),
        (500, 1000, 600, 0),
    ],
)
def test_room_within_a_budget(limit, free, reserved, expected):
    device = FakeDevice(1000)
    device.free = free

    assert MemoryBudget(limit, device).available("cpu", reserved) == expected


def test_memory_that_others_were_given_and_have_not_taken_yet_is_not_free():
    device = FakeDevice(1000)
    device.free = 500

    assert MemoryBudget(0, device).available("cpu", reserved_bytes=300, unwritten_bytes=200) == 300
    assert MemoryBudget(0, device).available("cpu", reserved_bytes=800, unwritten_bytes=200) == 100


def test_the_size_of_a_budget():
    assert MemoryBudget(0, FakeDevice(1000)).size("cpu") == 900
    assert MemoryBudget(5000, FakeDevice(1000)).size("cpu") == 5000
