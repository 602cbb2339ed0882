"""A line plot as SVG, without scripts or styles of its own: the page provides the colours, light or dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 28, 44
MAX_TICKS = 6
MANY = 10_000  # larger values have no fraction and no power of ten


@dataclass(frozen=True)
class Plot:
    """A line plot. ``level`` is the target value, drawn as a horizontal line."""

    title: str
    x_label: str
    points: tuple[tuple[float, float], ...]
    level: float | None = None

    def svg(self) -> SafeString:
        """Return the SVG; empty without points."""
        if not self.points:
            return SafeString("")
        points = sorted(self.points)
        xs = _Axis.over([x for x, _ in points], LEFT, WIDTH - RIGHT)
        levels = [] if self.level is None else [self.level]
        ys = _Axis.over([y for _, y in points] + levels, HEIGHT - BOTTOM, TOP)
        return format_html(
            '<svg class="evaluation-plot" viewBox="0 0 {} {}" role="img" aria-label="{}">'
            '<text class="title" x="{}" y="16">{}</text>{}{}{}{}{}'
            '<text class="label" x="{}" y="{}">{}</text></svg>',
            WIDTH,
            HEIGHT,
            f"{self.title} by {self.x_label}",
            LEFT,
            self.title,
            _y_ticks(ys),
            _x_ticks(xs),
            _level(ys, self.level),
            _curve(points, xs, ys),
            _dots(points, xs, ys),
            (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 6,
            self.x_label,
        )


@dataclass(frozen=True)
class _Axis:
    """Map values from ``low`` to ``high`` to pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        low, high = min(values), max(values)
        if low == high:  # a single value: the axis starts at 0
            low, high = min(low, 0.0), max(high, 0.0 if low else 1.0)
        step = _nice((high - low) / (MAX_TICKS - 1))
        low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        count = round((high - low) / step)
        return cls(low, high, start, end, tuple(low + n * step for n in range(count + 1)))

    def at(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 2)


def _nice(step: float) -> float:
    """Return the next larger of 1, 2, 5, 10 ... times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(nice * power for nice in (1, 2, 5, 10) if nice * power >= step * 0.999999)


def _y_ticks(axis: _Axis) -> SafeString:
    rows = ((LEFT, axis.at(t), WIDTH - RIGHT, axis.at(t), LEFT - 6, axis.at(t) + 4, number_text(t)) for t in axis.ticks)
    return format_html_join(
        "",
        '<line class="grid" x1="{}" y1="{}" x2="{}" y2="{}"/><text class="tick y" x="{}" y="{}">{}</text>',
        rows,
    )


def _x_ticks(axis: _Axis) -> SafeString:
    rows = ((axis.at(tick), HEIGHT - BOTTOM + 16, number_text(tick)) for tick in axis.ticks)
    return format_html_join("", '<text class="tick" x="{}" y="{}">{}</text>', rows)


def _level(axis: _Axis, level: float | None) -> SafeString:
    if level is None:
        return SafeString("")
    y = axis.at(level)
    return format_html('<line class="level" x1="{}" y1="{}" x2="{}" y2="{}"/>', LEFT, y, WIDTH - RIGHT, y)


def _curve(points: Sequence[tuple[float, float]], xs: _Axis, ys: _Axis) -> SafeString:
    path = " ".join(f"{xs.at(x)},{ys.at(y)}" for x, y in points)
    return format_html('<polyline class="curve" points="{}"/>', path)


def _dots(points: Sequence[tuple[float, float]], xs: _Axis, ys: _Axis) -> SafeString:
    rows = ((xs.at(x), ys.at(y), number_text(x), number_text(y)) for x, y in points)
    return format_html_join("", '<circle class="dot" cx="{}" cy="{}" r="3.5"><title>{}: {}</title></circle>', rows)


def number_text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= MANY else f"{value + 0.0:.4g}"
