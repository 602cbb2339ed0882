"""Something that answers requests and is measured, and rounds that take turns over several of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.figures import Figures, Trace, figures, median_figures
from benchmarks.workloads import Maker, Scale, Workload


class Subject(Protocol):
    """``name`` says what it is. One at a time runs; the others must be idle meanwhile."""

    name: str

    def run(self, workload: Workload) -> list[Trace]:
        """Answer all jobs; RuntimeError when one fails."""

    def peak_memory_mb(self) -> float | None:
        """Largest resident set of its process so far; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Row:
    """One subject's rounds on one workload."""

    subject: str
    workload: str
    note: str
    rounds: tuple[Figures, ...]
    median: Figures = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "median", median_figures(self.rounds))


@dataclass(frozen=True, slots=True)
class Plan:
    """How often and how large."""

    scale: Scale
    rounds: int = 3
    warm_up: bool = True


def measure(subjects: Sequence[Subject], makers: Iterable[Maker], plan: Plan) -> list[Row]:
    """Every workload in interleaved rounds: each round asks all subjects the same prompts, which are new to them.

    Order alternates between rounds, so that a drift of the machine does not favour the first.
    """
    rows = []
    for maker in makers:
        seen: dict[str, list[Figures]] = {subject.name: [] for subject in subjects}
        name = note = ""
        for number in range(-1 if plan.warm_up else 0, plan.rounds):
            workload = maker(plan.scale, number)
            name, note = workload.name, workload.note
            for subject in subjects if number % 2 == 0 else reversed(subjects):
                found = _figures_of(subject, workload)
                if number >= 0:
                    seen[subject.name].append(found)
        rows += [Row(subject, name, note, tuple(rounds)) for subject, rounds in seen.items()]
        say(*(f"{row.workload:12} {row.subject:28} {row.median.output_tok_s:8.1f} tok/s" for row in rows[-len(seen) :]))
    return rows


def _figures_of(subject: Subject, workload: Workload) -> Figures:
    traces = subject.run(workload)
    return figures(traces, peak_memory_mb=subject.peak_memory_mb())


def ratios(rows: Mapping[str, Row], figure: str, above: str, below: str) -> float | None:
    """The median of ``above``'s figure over ``below``'s, round by round; None where either lacks it."""
    pairs = [
        (getattr(a, figure), getattr(b, figure)) for a, b in zip(rows[above].rounds, rows[below].rounds, strict=True)
    ]
    if any(a is None or not b for a, b in pairs):
        return None
    ordered = sorted(a / b for a, b in pairs)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def say(*lines: str) -> None:
    """To the terminal at once."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
