"""Reports of sweeps: what steering does to answers, by strength."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Interval = tuple[float | None, float | None]


@dataclass(frozen=True)
class SweepRow:
    """The figures of all answers at one strength, or of a control. None where a figure is not known.

    ``strength`` multiplies the strengths of the edits; 0 without steering. ``kl``: KL(steered || unsteered) on the
    steered answers, in nats per token, and ``kl_base``: KL(unsteered || steered) on the unsteered ones. ``perplexity``:
    of the answers under the unsteered model; high means broken text. ``repeat``: mean share of repeated 4-grams.
    ``words``: share of the words that signal the concept. ``success``: share of answers without a failure.
    ``intervals``: 95 % intervals by the names of the figures. ``raw`` is the whole point as the server sent it.
    """

    kind: str
    name: str
    strength: float
    relative_size: float | None
    kl: float | None
    kl_base: float | None
    perplexity: float | None
    repeat: float | None
    words: float | None
    success: float | None
    intervals: Mapping[str, Interval] = field(repr=False)
    samples: tuple[tuple[str, str], ...] = field(repr=False)
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, point: Mapping[str, Any], num_answers: int) -> SweepRow:
        factor = point["factor"]
        name = "no steering" if factor is None else f"{factor:g} × the strength"
        return cls(
            kind=point.get("kind", "unsteered" if factor is None else "profile"),
            name=point.get("name") or name,
            strength=factor or 0.0,
            relative_size=point["push"],
            kl=point["kl"],
            kl_base=point.get("kl_base"),
            perplexity=point["perplexity"],
            repeat=point["repeat"],
            words=point["words"],
            success=point.get("success", 1.0 - point["failures"] / num_answers),
            intervals={name: (one[-2], one[-1]) for name, one in point.get("intervals", {}).items() if one},
            samples=tuple((one["prompt"], one["text"]) for one in point["samples"]),
            raw=point,
        )


@dataclass(frozen=True, eq=False)
class Sweep(Sequence[SweepRow]):
    """A report: a sequence of rows, the unsteered one first, then by strength.

    ``controls``: rows of other ways to move the model as much, where they were asked for: random directions, random
    features, a system prompt. ``recommendation``: the server's proposal, where it makes one. ``raw``: the whole report.
    """

    model: str
    rows: tuple[SweepRow, ...]
    controls: tuple[SweepRow, ...]
    recommendation: Mapping[str, Any] | None
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, report: Mapping[str, Any]) -> Sweep:
        texts = report["texts"]
        num_answers = len(texts["prompts"]) * texts.get("samples_per_prompt", 1)
        return cls(
            model=report["model"],
            rows=tuple(SweepRow.read(point, num_answers) for point in report["points"]),
            controls=tuple(SweepRow.read(point, num_answers) for point in report.get("controls", ())),
            recommendation=report.get("recommendation"),
            raw=report,
        )

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, number: int) -> SweepRow: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[SweepRow, ...]: ...
    def __getitem__(self, number: int | slice) -> SweepRow | tuple[SweepRow, ...]:
        return self.rows[number]

    def __iter__(self) -> Iterator[SweepRow]:
        return iter(self.rows)

    def __str__(self) -> str:
        width = max(len(row.name) for row in (*self.rows, *self.controls))
        lines = [f"{'':{width}}  size     KL  KL base  perplexity  repeat  words  success"]
        for row in (*self.rows, *self.controls):
            figures = (
                *(_shown(row.relative_size, 4), _shown(row.kl, 5), _shown(row.kl_base, 7)),
                *(_shown(row.perplexity, 10), _shown(row.repeat, 6), _shown(row.words, 5, 3), _shown(row.success, 7)),
            )
            lines.append(f"{row.name:{width}}  {'  '.join(figures)}")
        return "\n".join(lines)

    def plot(self, effect: str = "words", axes: Axes | None = None) -> Axes:
        """Plot an effect (``words``, ``kl``, ``kl_base``) and the perplexity against the strength. Needs matplotlib.

        Where the server gave intervals they are drawn; controls are dashed lines.
        """
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ImportError("Plots need matplotlib: pip install matplotlib") from error
        axes = axes if axes is not None else pyplot.subplots(figsize=(6, 3.5))[1]
        rows = [row for row in self.rows if getattr(row, effect) is not None]
        strengths = [row.strength for row in rows]
        axes.plot(strengths, [getattr(row, effect) for row in rows], "o-", color="tab:blue", label=effect)
        bands = [(row.strength, *row.intervals.get(effect, (None, None))) for row in rows]
        banded = np.array([band for band in bands if None not in band], np.float64).reshape(-1, 3)
        axes.fill_between(banded[:, 0], banded[:, 1], banded[:, 2], color="tab:blue", alpha=0.2, linewidth=0)
        for row in self.controls:
            if getattr(row, effect) is not None:
                axes.axhline(getattr(row, effect), color="tab:gray", linestyle="--", linewidth=0.7)
        axes.set_xlabel("strength (multiple of the edits')")
        axes.set_ylabel(effect, color="tab:blue")
        right = axes.twinx()
        fluent = [(row.strength, row.perplexity) for row in self.rows if row.perplexity is not None]
        right.plot([x for x, _ in fluent], [y for _, y in fluent], "s:", color="tab:red")
        right.set_yscale("log")
        right.set_ylabel("perplexity, unsteered model", color="tab:red")
        return axes


def _shown(value: float | None, width: int, digits: int = 2) -> str:
    return f"{'–' if value is None else format(value, f'.{digits}f'):>{width}}"
