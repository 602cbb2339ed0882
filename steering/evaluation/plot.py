"""Plots of reports, as SVG without scripts or styles of its own, or as PNG.

In the SVG, the page provides the colours, light or dark. A plot is a list of shapes, which both formats draw.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 28, 44
MAX_TICKS = 6
MANY = 10_000  # larger values have no fraction and no power of ten
SCALE = 2  # pixels of a PNG for each unit
COLUMNS = 2  # of plots in a PNG
_COLOURS = {
    "grid": "#e0e0e0",
    "level": "#ba2121",
    "curve": "#417893",
    "dot": "#417893",
    "error": "#417893",
    "control": "#8a6d3b",
    "control-error": "#8a6d3b",
    "best": "#2b7a2b",
    "label": "#666666",
    "tick": "#666666",
    "tick y": "#666666",
    "note": "#333333",
    "title": "#333333",
}
Point = tuple[float, float]


@dataclass(frozen=True)
class Mark:
    """A labelled point beside the curve, such as a control; ``low`` and ``high`` are the interval of its ``y``."""

    label: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    kind: Literal["control", "best"] = "control"


@dataclass(frozen=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    kind: str


@dataclass(frozen=True)
class Curve:
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    radius: float
    kind: str
    words: str


@dataclass(frozen=True)
class Label:
    """A text; ``anchor`` says which end of it lies at ``x``."""

    x: float
    y: float
    text: str
    kind: str
    anchor: Literal["start", "middle", "end"] = "start"


Shape = Line | Curve | Dot | Label


@dataclass(frozen=True)
class Plot:
    """A line plot. ``level`` is the target value, drawn as a horizontal line.

    ``intervals`` are x, low and high of error bars, ``names`` texts beside points by x. A logarithmic axis is linear
    instead if a value is not positive.
    """

    title: str
    x_label: str
    points: tuple[Point, ...]
    level: float | None = None
    intervals: tuple[tuple[float, float, float], ...] = ()
    marks: tuple[Mark, ...] = ()
    names: dict[float, str] = field(default_factory=dict)
    log_x: bool = False
    log_y: bool = False
    in_order: bool = False  # connect the points in their order rather than by x

    def svg(self) -> SafeString:
        """Return the SVG; empty without points."""
        if not self.points:
            return SafeString("")
        return format_html(
            '<svg class="evaluation-plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>',
            WIDTH,
            HEIGHT,
            f"{self.title} by {self.x_label}",
            format_html_join("", "{}", ((_svg(shape),) for shape in self.shapes())),
        )

    def shapes(self) -> list[Shape]:
        """Return the shapes from back to front; none without points."""
        if not self.points:
            return []
        points = list(self.points) if self.in_order else sorted(self.points)
        ys = [y for _, y in points] + [value for _, *ends in self.intervals for value in ends]
        ys += [value for mark in self.marks for value in (mark.y, mark.low, mark.high) if value is not None]
        ys += [] if self.level is None else [self.level]
        across = _Axis.over([x for x, _ in points] + [mark.x for mark in self.marks], LEFT, WIDTH - RIGHT, self.log_x)
        along = _Axis.over(ys, HEIGHT - BOTTOM, TOP, self.log_y)
        return [
            Label(LEFT, 16, self.title, "title"),
            *_ticks(across, along),
            *([] if self.level is None else [_across(along.at(self.level), "level")]),
            *(_bar(across.at(x), along.at(low), along.at(high), "error") for x, low, high in self.intervals),
            Curve(tuple((across.at(x), along.at(y)) for x, y in points)),
            *(Dot(across.at(x), along.at(y), 3.5, "dot", f"{number_text(x)}: {number_text(y)}") for x, y in points),
            *(
                Label(_inside(across.at(x)), along.at(y) - 7, self.names[x], "note", "middle")
                for x, y in points
                if x in self.names
            ),
            *(shape for number, mark in enumerate(self.marks) for shape in _mark(mark, number, across, along)),
            Label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, self.x_label, "label", "middle"),
        ]


def png(plots: Sequence[Plot], title: str) -> bytes:
    """Return the plots in one picture, two in a row, on white."""
    drawn = [plot for plot in plots if plot.points]
    rows = max(1, math.ceil(len(drawn) / COLUMNS))
    image = Image.new("RGB", (SCALE * WIDTH * COLUMNS, SCALE * (HEIGHT * rows + TOP)), "white")
    draw = ImageDraw.Draw(image)
    _draw(draw, Label(LEFT, 18, title, "title"), (0, 0))
    for number, plot in enumerate(drawn):
        row, column = divmod(number, COLUMNS)
        for shape in plot.shapes():
            _draw(draw, shape, (WIDTH * column, HEIGHT * row + TOP))
    found = io.BytesIO()
    image.save(found, "PNG", optimize=True)
    return found.getvalue()


@dataclass(frozen=True)
class _Axis:
    """Map values from ``low`` to ``high`` to pixels from ``start`` to ``end``; their logarithms if ``is_log``."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    is_log: bool = False

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, is_log: bool = False) -> _Axis:  # noqa: FBT001, FBT002
        low, high = min(values), max(values)
        if is_log and low > 0 and high > low:
            return cls._logarithmic(low, high, start, end)
        if low == high:  # a single value: the axis starts at 0
            low, high = min(low, 0.0), max(high, 0.0 if low else 1.0)
        step = _nice((high - low) / (MAX_TICKS - 1))
        low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        count = round((high - low) / step)
        return cls(low, high, start, end, tuple(low + n * step for n in range(count + 1)))

    @classmethod
    def _logarithmic(cls, low: float, high: float, start: float, end: float) -> _Axis:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        every = max(1, math.ceil(len(powers) / MAX_TICKS))
        factors = (1, 2, 5) if len(powers) <= 3 else (1,)
        known = [factor * 10.0**power for power in powers[::every] for factor in factors]
        first = max((tick for tick in known if tick <= low), default=low)
        last = min((tick for tick in known if tick >= high), default=high)
        return cls(first, last, start, end, tuple(t for t in known if first <= t <= last), is_log=True)

    def at(self, value: float) -> float:
        if self.is_log:
            low, high, value = math.log(self.low), math.log(self.high), math.log(value)
        else:
            low, high = self.low, self.high
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 2)


def _nice(step: float) -> float:
    """Return the next larger of 1, 2, 5, 10 ... times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(nice * power for nice in (1, 2, 5, 10) if nice * power >= step * 0.999999)


def _ticks(across: _Axis, along: _Axis) -> Iterator[Shape]:
    for tick in along.ticks:
        yield _across(along.at(tick), "grid")
        yield Label(LEFT - 6, along.at(tick) + 4, number_text(tick), "tick y", "end")
    for tick in across.ticks:
        yield Label(across.at(tick), HEIGHT - BOTTOM + 16, number_text(tick), "tick", "middle")


def _across(y: float, kind: str) -> Line:
    return Line(LEFT, y, WIDTH - RIGHT, y, kind)


def _bar(x: float, low: float, high: float, kind: str) -> Line:
    return Line(x, low, x, high, kind)


def _mark(mark: Mark, number: int, across: _Axis, along: _Axis) -> Iterator[Shape]:
    """Yield a mark with a letter beside it, and its entry in the legend at the upper left."""
    x, y = across.at(mark.x), along.at(mark.y)
    if mark.low is not None and mark.high is not None:
        yield _bar(x, along.at(mark.low), along.at(mark.high), f"{mark.kind}-error")
    yield Dot(x, y, 5 if mark.kind == "best" else 4, mark.kind, f"{mark.label}: {number_text(mark.y)}")
    letter, line = "ABCDEFGH"[number % 8], TOP + 12 + 14 * number
    yield Label(x, y + 15, letter, "note", "middle")
    yield Dot(LEFT + 10, line - 4, 4, mark.kind, mark.label)
    yield Label(LEFT + 18, line, f"{letter} {mark.label}", "note")


def _inside(x: float) -> float:
    return min(max(x, LEFT + 12), WIDTH - RIGHT - 12)


def _svg(shape: Shape) -> SafeString:
    match shape:
        case Line(x1, y1, x2, y2, kind):
            return format_html('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>', kind, x1, y1, x2, y2)
        case Curve(points):
            path = " ".join(f"{x},{y}" for x, y in points)
            return format_html('<polyline class="curve" points="{}"/>', path)
        case Dot(x, y, radius, kind, words):
            text = '<circle class="{}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>'
            return format_html(text, kind, x, y, radius, words)
        case Label(x, y, text, kind, anchor):
            # Classes of the style sheet set the anchors of ticks and of the axis' label.
            if kind == "note":
                return format_html('<text class="note {}" x="{}" y="{}">{}</text>', anchor, x, y, text)
            return format_html('<text class="{}" x="{}" y="{}">{}</text>', kind, x, y, text)


def _draw(draw: ImageDraw.ImageDraw, shape: Shape, offset: Point) -> None:
    def at(x: float, y: float) -> Point:
        return SCALE * (x + offset[0]), SCALE * (y + offset[1])

    match shape:
        case Line(x1, y1, x2, y2, kind):
            draw.line([at(x1, y1), at(x2, y2)], fill=_COLOURS.get(kind, "#417893"), width=SCALE)
        case Curve(points):
            draw.line([at(x, y) for x, y in points], fill=_COLOURS["curve"], width=2 * SCALE, joint="curve")
        case Dot(x, y, radius, kind, _):
            draw.circle(at(x, y), SCALE * radius, fill=_COLOURS[kind])
        case Label(x, y, text, kind, anchor):
            font = ImageFont.load_default(SCALE * (12 if kind == "title" else 10))
            text = text.replace("‖", "||").replace("×", "x")  # not in Pillow's own font
            draw.text(at(x, y), text, _COLOURS[kind], font, anchor={"start": "ls", "middle": "ms", "end": "rs"}[anchor])


def number_text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= MANY else f"{value + 0.0:.4g}"
