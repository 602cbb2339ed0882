"""The load of the last hour, day or week, summed over all processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from console.load.load import Load
from console.models import HOUR_S, MINUTE_S, LoadSample


@dataclass(frozen=True, slots=True)
class Span:
    """A time range: ``num_points`` points of ``point_s`` seconds, from samples of ``sample_s``."""

    name: str
    point_s: int
    num_points: int
    sample_s: int

    def begin(self, now: datetime) -> datetime:
        """Return the start of the first point. Points start at multiples of their length; the last contains ``now``."""
        last = int(now.timestamp()) // self.point_s * self.point_s
        return datetime.fromtimestamp(last - (self.num_points - 1) * self.point_s, UTC)


SPANS = {
    span.name: span
    for span in (
        Span("hour", MINUTE_S, 60, MINUTE_S),
        Span("day", 900, 96, MINUTE_S),
        Span("week", HOUR_S, 168, HOUR_S),
    )
}


@dataclass(frozen=True, slots=True)
class Point:
    at: datetime
    load: Load


def read_history(span: Span, now: datetime) -> tuple[Point, ...]:
    """Return the points of a range, with one query of at most a few thousand rows. Points without samples are empty."""
    begin = span.begin(now)
    rows = LoadSample.objects.filter(span_s=span.sample_s, begins_at__gte=begin, begins_at__lte=now)
    return tuple(points_of(span, begin, ((row.begins_at, row.load()) for row in rows)))


def points_of(span: Span, begin: datetime, loads: Iterable[tuple[datetime, Load]]) -> Iterator[Point]:
    sums = [Load()] * span.num_points
    for at, load in loads:
        place = int((at - begin).total_seconds()) // span.point_s
        sums[place] = sums[place] + load
    for number, load in enumerate(sums):
        yield Point(begin + timedelta(seconds=number * span.point_s), load)


def total(points: Iterable[Point]) -> Load:
    return sum((point.load for point in points), Load())
