"""Results of a program, stored as JSON under ``benchmarks/results`` for the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Figures
from benchmarks.machine import Machine, this_machine
from benchmarks.subject import Row

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Record:
    """Results of one program. ``values`` are single numbers, such as the limits of the machine."""

    program: str
    shape: str
    rows: tuple[Row, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    machine: Machine = field(default_factory=this_machine)

    def row(self, subject: str, workload: str) -> Row | None:
        found = [row for row in self.rows if (row.subject, row.workload) == (subject, workload)]
        return found[0] if found else None

    @property
    def file_name(self) -> str:
        return f"{self.program}-{self.shape}.json"

    def as_json(self) -> dict[str, Any]:
        return {
            "program": self.program,
            "shape": self.shape,
            "machine": self.machine.as_json(),
            "values": dict(self.values),
            "notes": list(self.notes),
            "rows": [_row_json(row) for row in self.rows],
        }

    def save(self, folder: Path = RESULTS) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.file_name
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        return path


def read_records(folder: Path = RESULTS) -> list[Record]:
    return [_record(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "subject": row.subject,
        "workload": row.workload,
        "note": row.note,
        "median": row.median.as_json(),
        "rounds": [figures.as_json() for figures in row.rounds],
    }


def _record(found: Mapping[str, Any]) -> Record:
    return Record(
        program=found["program"],
        shape=found["shape"],
        rows=tuple(_row(row) for row in found["rows"]),
        values=found["values"],
        notes=tuple(found["notes"]),
        machine=Machine(**found["machine"]),
    )


def _row(found: Mapping[str, Any]) -> Row:
    rounds: Sequence[Mapping[str, Any]] = found["rounds"]
    return Row(found["subject"], found["workload"], found["note"], tuple(Figures(**figures) for figures in rounds))
