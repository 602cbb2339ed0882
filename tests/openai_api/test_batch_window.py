"""How many lines of batches run at once."""

from __future__ import annotations

from typing import Any

import pytest

from inference.client import EngineStats
from openai_api.endpoints.batch_window import MAX_LINES, BatchWindow, max_lines


def stats(**counts: Any) -> EngineStats:
    return EngineStats("running", **counts)


@pytest.mark.parametrize(
    ("load", "num_lines", "most"),
    [
        (stats(free_slots=16), 0, 12),  # all but a quarter
        (stats(free_slots=6, running=10, background_running=10), 10, 12),
        (stats(free_slots=0, running=16, background_running=16, background_waiting=3, waiting=3), 12, 8),
        (stats(free_slots=15, running=1), 0, 8),  # somebody's request runs: half
        (stats(free_slots=15, running=1, waiting=1), 0, 0),  # and another one waits
        (stats(waiting=2, background_waiting=2), 2, 8),  # lines that wait are no reason to stop
        (stats(), 0, 8),  # no model with slots: embeddings, or one that is not loaded
    ],
)
def test_the_window_follows_the_engine(load: EngineStats, num_lines: int, most: int) -> None:
    assert max_lines(load, num_lines=num_lines, max_batch_size=16) == most


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (2, 1), (3, 2), (4, 3), (4_096, MAX_LINES)])
def test_small_and_large_engines(slots: int, most: int) -> None:
    assert max_lines(stats(free_slots=slots), num_lines=0, max_batch_size=slots) == most


def test_batches_share_the_window_and_take_what_others_leave() -> None:
    load = stats(free_slots=16)
    window = BatchWindow(lambda: load, lambda: 16)
    with window.entry() as one:
        assert sum(one.try_start() for _ in range(20)) == 12
        with window.entry() as other:
            assert not other.try_start()  # nothing is free yet
            for _ in range(7):
                one.end()
            assert sum(other.try_start() for _ in range(20)) == 6
            assert [one.try_start() for _ in range(2)] == [True, False]
        assert sum(one.try_start() for _ in range(20)) == 6
    with window.entry() as later:
        assert sum(later.try_start() for _ in range(20)) == 12


def test_a_limit_of_the_batch_holds_too() -> None:
    window = BatchWindow(lambda: stats(free_slots=16), lambda: 16)
    with window.entry() as share:
        assert [share.try_start(1) for _ in range(2)] == [True, False]
        share.end()
        assert share.try_start(1)
