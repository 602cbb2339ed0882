"""The engine's own costs, as counts: they depend neither on the machine nor on its load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.picture import draw_scaling, series
from benchmarks.report import section
from benchmarks.scaling import CASES, Case, Engine, growth, instructions
from tests.benchmarks.builders import build_record

SMALL = {10: 20, 100: 100, 1_000: 400, 128: 128, 1_024: 512, 16_384: 4_096}


def smaller(case: Case) -> Case:
    return replace(case, sizes=tuple(SMALL.get(n, n) for n in case.sizes))


@pytest.mark.parametrize("case", [pytest.param(smaller(case), id=case.name) for case in CASES])
def test_no_cost_grows_with_what_does_not_run(case: Case):
    """On a starved machine a background request may be admitted meanwhile, so the case may be tried again."""
    assert any(growth(case) < 1.1 for _ in range(3))


def test_a_cost_that_grows_is_seen():
    def prepare(engine: Engine, n: int):
        return lambda: sum(i for i in range(n))

    assert growth(Case("a sum", (10, 100, 1_000, 10_000), prepare)) > 50


def test_counts_do_not_vary():
    (case,) = [case for case in CASES if case.name == "requests in the queue"]
    assert instructions(case, 5) == instructions(case, 5)


def test_a_record_becomes_a_table_and_a_picture(tmp_path: Path):
    values = {f"{case.name} / {case.unit} / {n}": 100.0 + n for case in CASES for n in case.sizes}
    record = build_record("scaling", shape="engine", **values)
    assert len(series(record)) == len(CASES)
    text = "\n".join(section(record))
    assert "| requests in the queue | step | 10: 110, 100: 200, 1,000: 1,100, 10,000: 10,100 |" in text
    assert draw_scaling(record, tmp_path / "scaling.png").stat().st_size > 10_000
