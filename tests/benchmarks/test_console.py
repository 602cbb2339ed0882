"""The benchmark of pages runs on a small database and leaves figures of every page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.console import Size, record
from benchmarks.record import read_records
from benchmarks.report import section


@pytest.mark.usefixtures("migrated_database")
def test_every_page_has_a_figure(tmp_path: Path):
    made = record(Size(rows=400, features=30), rounds=1)
    made.save(tmp_path)
    (found,) = read_records(tmp_path)
    assert found == made
    assert len(found.values) > 40
    assert all(value > 0 for value in found.values.values())
    assert "- log, common word ms: " in "\n".join(section(found))
