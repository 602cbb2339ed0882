"""Subjects that are measured, and interleaved rounds over several of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from benchmarks.figures import Figures, Trace, figures, median_figures
from benchmarks.workloads import Maker, Scale, Workload

SETTLE_S = 5.0
SHORT_SHARE = 0.1  # of the lengths: shorter runs only try whether all works


class Subject(Protocol):
    """A named engine or server that is measured. Only one runs at a time; the others must be idle."""

    name: str

    def run(self, workload: Workload) -> list[Trace]:
        """Run all jobs. Raise RuntimeError if one fails."""

    def peak_memory_mb(self) -> float | None:
        """Return the peak resident set size of its process, or None if it is unknown."""


@dataclass(frozen=True, slots=True)
class Row:
    """The rounds of one subject on one workload."""

    subject: str
    workload: str
    note: str
    rounds: tuple[Figures, ...]
    median: Figures = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "median", median_figures(self.rounds))


@dataclass(frozen=True, slots=True)
class Plan:
    """Number of rounds and scale of the workloads; the lengths of the warm-up are ``warm_up_share`` of theirs.

    With ``leaves_out``, a subject that fails is left out of the rows of its workload and of later ones. A subject waits
    ``settle_s`` before it starts, because the one before may have work to finish: our engine allocates memory ahead
    when its last request has ended, which takes a core for up to three seconds on a virtual machine.
    """

    scale: Scale
    rounds: int = 3
    warm_up: bool = True
    warm_up_share: float = 1.0
    leaves_out: bool = False
    settle_s: float = 0.0


def measure(subjects: Sequence[Subject], makers: Iterable[Maker], plan: Plan) -> list[Row]:
    """Run every workload in interleaved rounds. In each round, all subjects get the same, new prompts.

    The order alternates between rounds, so that drifts of the machine's speed do not favour one subject.
    """
    rows = []
    for maker in makers:
        seen: dict[str, list[Figures]] = {subject.name: [] for subject in subjects}
        name = note = ""
        for number in range(-1 if plan.warm_up else 0, plan.rounds):
            share = plan.scale.share * (plan.warm_up_share if number < 0 else 1)
            workload = maker(replace(plan.scale, share=share), number)
            name, note = workload.name, workload.note
            for subject in subjects if number % 2 == 0 else reversed(subjects):
                if share >= SHORT_SHARE:
                    time.sleep(plan.settle_s)
                try:
                    found = _figures_of(subject, workload)
                except Exception as error:
                    if not plan.leaves_out:
                        raise
                    echo(f"Leaving out {subject.name} from {name} on. {type(error).__name__}: {error}")
                    subjects = [one for one in subjects if one is not subject]
                    del seen[subject.name]
                    continue
                if number >= 0:
                    seen[subject.name].append(found)
        rows += [Row(subject, name, note, tuple(rounds)) for subject, rounds in seen.items()]
        echo(
            *(f"{row.workload:12} {row.subject:28} {row.median.output_tok_s:8.1f} tok/s" for row in rows[-len(seen) :])
        )
    return rows


def _figures_of(subject: Subject, workload: Workload) -> Figures:
    traces = subject.run(workload)
    return figures(traces, peak_memory_mb=subject.peak_memory_mb())


def works(subject: Subject, maker: Maker, scale: Scale) -> bool:
    """Return whether a subject runs a short workload. One that does not must not prevent the other measurements."""
    try:
        subject.run(maker(replace(scale, share=scale.share / 16), -2))
    except Exception as error:  # noqa: BLE001 - whatever another project's code raises
        echo(f"Skipping {subject.name}. {type(error).__name__}: {error}")
        return False
    return True


def ratios(rows: Mapping[str, Row], figure: str, above: str, below: str) -> float | None:
    """Return the median over the rounds of the figure of ``above`` over that of ``below``; None if one lacks it."""
    pairs = [
        (getattr(a, figure), getattr(b, figure)) for a, b in zip(rows[above].rounds, rows[below].rounds, strict=True)
    ]
    if any(a is None or not b for a, b in pairs):
        return None
    ordered = sorted(a / b for a, b in pairs)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def echo(*lines: str) -> None:
    """Print the lines and flush."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
