"""The committed baseline, and the comparison of new figures with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PATH = Path(__file__).parent / "baseline.json"
TOLERANCE = 0.10

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure, and whether higher or lower is better."""

    value: float
    better: Better


@dataclass(frozen=True, slots=True)
class Change:
    """``loss`` is the relative loss, negative if the figure improved. None: there is nothing to compare with."""

    name: str
    before: float | None
    now: float | None
    loss: float | None

    def is_failure(self, tolerance: float = TOLERANCE) -> bool:
        """Return whether the figure is worse by more than ``tolerance``, or is no longer measured."""
        if self.now is None:
            return True
        return self.loss is not None and self.loss > tolerance


def compare(before: Mapping[str, Measure], now: Mapping[str, Measure]) -> list[Change]:
    """Return the changes of all figures of either side, sorted by name."""
    return [_change(name, before.get(name), now.get(name)) for name in sorted({*before, *now})]


def _change(name: str, before: Measure | None, now: Measure | None) -> Change:
    if before is None or now is None:
        return Change(name, _value(before), _value(now), None)
    return Change(name, before.value, now.value, _loss(before.value, now.value, now.better))


def _value(found: Measure | None) -> float | None:
    return None if found is None else found.value


def _loss(before: float, now: float, better: Better) -> float:
    worse, fine = (now, before) if better == "lower" else (before, now)
    if worse == fine:
        return 0.0
    return float("inf") if fine == 0 else worse / fine - 1


def read_baseline(path: Path = PATH) -> dict[str, Measure]:
    """Return the measures in a file that :func:`write_baseline` wrote."""
    return {name: Measure(**found) for name, found in json.loads(path.read_text())["measures"].items()}


def write_baseline(measures: Mapping[str, Measure], machine: Mapping[str, object], path: Path = PATH) -> None:
    found = {name: {"value": round(m.value, 4), "better": m.better} for name, m in sorted(measures.items())}
    path.write_text(json.dumps({"machine": machine, "measures": found}, indent=1) + "\n")
