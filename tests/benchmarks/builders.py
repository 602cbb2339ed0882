"""Figures and records that nobody measured."""

from __future__ import annotations

from benchmarks.figures import Figures
from benchmarks.machine import Machine
from benchmarks.record import Record
from benchmarks.subject import Row

MACHINE = Machine("Some CPU", 2, 24.0, "", 2, "3.11.7", {"torch": "2.13.0"}, "0123456789ab", "2026-11-21")


def build_figures(speed: float = 100.0, **overrides: float | None) -> Figures:
    found: dict[str, float | None] = {
        "requests": 16,
        "prompt_tokens": 1000,
        "completion_tokens": 500,
        "seconds": 5.0,
        "output_tok_s": speed,
        "total_tok_s": 3 * speed,
        "decode_tok_s": speed,
        "ttft_p50_s": 0.5,
        "itl_p50_s": 0.01,
        "itl_p99_s": 0.015,
    }
    return Figures(**{**found, **overrides})  # type: ignore[arg-type]


def build_row(subject: str, workload: str, *speeds: float, **overrides: float | None) -> Row:
    return Row(subject, workload, "a note", tuple(build_figures(speed, **overrides) for speed in speeds))


def build_record(program: str, *rows: Row, shape: str = "qwen3-0.6b", **values: float) -> Record:
    return Record(program, shape, rows, values, machine=MACHINE)
