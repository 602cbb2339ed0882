"""What counts as a regression."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.baseline import PATH, Measure, compare, read_baseline, write_baseline
from benchmarks.check import better_of, judge, table


def low(value: float) -> dict[str, Measure]:
    return {"calls": Measure(value, "lower")}


def high(value: float) -> dict[str, Measure]:
    return {"speed": Measure(value, "higher")}


@pytest.mark.parametrize(("now", "fails"), [(90, False), (100, False), (109, False), (111, True), (300, True)])
def test_a_count_may_grow_by_a_tenth(now: float, fails: bool):
    (change,) = compare(low(100), low(now))
    assert change.is_failure() is fails
    assert change.loss == pytest.approx(now / 100 - 1)


@pytest.mark.parametrize(("now", "fails"), [(2.0, False), (1.0, False), (0.91, False), (0.90, True), (0.1, True)])
def test_a_speed_may_fall_until_the_old_one_is_a_tenth_higher(now: float, fails: bool):
    (change,) = compare(high(1.0), high(now))
    assert change.is_failure() is fails


def test_something_where_there_was_nothing_is_a_loss():
    (change,) = compare(low(0), low(1))
    assert change.is_failure()
    assert not compare(low(0), low(0))[0].is_failure()


def test_a_figure_that_is_not_measured_any_more_fails_and_a_new_one_does_not():
    gone, new = compare(low(1), high(1))
    assert (gone.name, gone.is_failure()) == ("calls", True)
    assert (new.name, new.is_failure()) == ("speed", False)


def test_the_baseline_comes_back_from_its_file(tmp_path: Path):
    write_baseline(low(3) | high(0.75), {"cpu": "x"}, tmp_path / "baseline.json")
    assert read_baseline(tmp_path / "baseline.json") == low(3) | high(0.75)


def test_times_are_taken_again_while_they_look_worse():
    tries = iter([high(0.5), high(0.7), high(1.0), high(9.0)])
    changes = judge(low(10) | high(1.0), lambda: low(10), lambda: next(tries), tries=3)
    assert not any(change.is_failure() for change in changes)
    assert next(tries) == high(9.0)  # three tries were enough


def test_times_that_stay_worse_fail():
    changes = judge(high(1.0), dict, lambda: high(0.8), tries=3)
    assert [change.is_failure() for change in changes] == [True]


def test_times_that_are_fine_are_taken_once():
    tries = iter([high(1.0)])
    judge(high(1.0), dict, lambda: next(tries), tries=3)


def test_the_better_try_is_kept_in_each_direction():
    assert better_of(low(3) | high(3), low(2) | high(2)) == low(2) | high(3)


def test_the_table_names_what_is_worse():
    lines = table(compare(low(100) | high(1), low(150) | high(1)))
    assert lines[2] == "| calls | 100 | 150 | +50.0% | WORSE |"
    assert lines[3] == "| speed | 1 | 1 | +0.0% |  |"


def test_the_committed_baseline_can_be_read():
    measures = read_baseline(PATH)
    assert "16 streams: torch operators a step" in measures
    assert all(measure.value > 0 for measure in measures.values())
