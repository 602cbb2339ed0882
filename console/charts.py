"""Time series as tables, which charts.js draws. Screen readers read the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from django.utils.timezone import localtime

from console.load.history import Point, Span
from console.load.load import Load


@dataclass(frozen=True, slots=True)
class Row:
    at: int  # seconds since 1970
    label: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    unit: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def is_empty(self) -> bool:
        return not any(value for row in self.rows for value in row.values)


Column = tuple[str, Callable[[Load, Span], float | None]]

CHARTS: tuple[tuple[str, str, tuple[Column, ...]], ...] = (
    (
        "Requests",
        "per minute",
        (
            ("requests", lambda load, span: load.requests * 60 / span.point_s),
            ("errors", lambda load, span: load.num_errors * 60 / span.point_s),
        ),
    ),
    (
        "Tokens",
        "per second",
        (
            ("generated", lambda load, span: load.generation_tokens / span.point_s),
            ("prompts", lambda load, span: load.prompt_tokens / span.point_s),
        ),
    ),
    (
        "Time to first token",
        "ms",
        (
            ("median", lambda load, span: _ms(load.first_token_s(0.5))),
            ("95th percentile", lambda load, span: _ms(load.first_token_s(0.95))),
        ),
    ),
    (
        "Time between tokens",
        "ms",
        (
            ("median", lambda load, span: _ms(load.gap_s(0.5))),
            ("95th percentile", lambda load, span: _ms(load.gap_s(0.95))),
        ),
    ),
    (
        "Batch",
        "sequences",
        (
            ("mean", lambda load, span: load.mean_batch),
            ("max running", lambda load, span: load.running),
            ("max waiting", lambda load, span: load.waiting),
        ),
    ),
    ("KV cache used", "%", (("max", lambda load, span: 100 * load.kv),)),
)


SPARK_WIDTH, SPARK_HEIGHT = 120, 24  # units of the drawing


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A figure's course over the span as a small drawing. ``points`` are those of an SVG polyline."""

    points: str
    label: str


SPARKLINES: Mapping[str, tuple[str, Callable[[Load, Span], float]]] = {
    "requests": ("requests per second", lambda load, span: load.requests / span.point_s),
    "tokens": ("tokens per second", lambda load, span: load.generation_tokens / span.point_s),
    "running": ("running and waiting", lambda load, span: load.running + load.waiting),
    "kv": ("percent of the KV cache", lambda load, span: 100 * load.kv),
}


def sparklines(span: Span, points: Sequence[Point]) -> dict[str, Sparkline]:
    """Return a drawing for each figure that was not 0 all the time."""
    drawn = {}
    for name, (unit, value) in SPARKLINES.items():
        values = [value(point.load, span) for point in points]
        if (most := max(values, default=0)) > 0:
            step = SPARK_WIDTH / max(1, len(values) - 1)
            places = (f"{i * step:.1f},{SPARK_HEIGHT * (1 - each / most):.1f}" for i, each in enumerate(values))
            drawn[name] = Sparkline(" ".join(places), f"Last {span.name}: at most {most:.3g} {unit}")
    return drawn


def charts(span: Span, points: Sequence[Point]) -> list[Chart]:
    return [_in_seconds(_chart(span, points, *described)) for described in CHARTS]


def _chart(span: Span, points: Sequence[Point], title: str, unit: str, columns: tuple[Column, ...]) -> Chart:
    rows = tuple(_row(span, point, columns) for point in points)
    return Chart(title, unit, tuple(name for name, _ in columns), rows)


def _in_seconds(chart: Chart) -> Chart:
    """Return a chart of milliseconds in seconds, if a value is a second or more."""
    if chart.unit != "ms" or not any(value and value >= 1000 for row in chart.rows for value in row.values):
        return chart
    rows = (
        replace(row, values=tuple(None if value is None else float(f"{value / 1000:.3g}") for value in row.values))
        for row in chart.rows
    )
    return replace(chart, unit="s", rows=tuple(rows))


def _row(span: Span, point: Point, columns: tuple[Column, ...]) -> Row:
    at = localtime(point.at)
    label = at.strftime("%H:%M" if span.name != "week" else "%a %H:%M")
    return Row(int(point.at.timestamp()), label, tuple(_rounded(value(point.load, span)) for _, value in columns))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
