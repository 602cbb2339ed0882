"""Time series as tables, which charts.js draws. Screen readers read the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


def charts(span: Span, points: Sequence[Point]) -> list[Chart]:
    return [
        Chart(title, unit, tuple(name for name, _ in columns), tuple(_row(span, point, columns) for point in points))
        for title, unit, columns in CHARTS
    ]


def _row(span: Span, point: Point, columns: tuple[Column, ...]) -> Row:
    at = localtime(point.at)
    label = at.strftime("%H:%M" if span.name != "week" else "%a %H:%M")
    return Row(int(point.at.timestamp()), label, tuple(_rounded(value(point.load, span)) for _, value in columns))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
