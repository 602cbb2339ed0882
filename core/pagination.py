"""Keyset pagination: any page of a table costs as much as the first, because no rows are counted or skipped.

:func:`keyset_page` serves pages with links in both directions, :func:`rows_between` lists between two cursors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, cast

from django.core.paginator import Paginator
from django.db import connection
from django.db.models import Model, Q, QuerySet

Row = TypeVar("Row", bound=Model)
Position = TypeVar("Position")
EXACT_BELOW = 50_000  # rows; for larger tables, Postgres's estimate is used
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_MICROSECONDS = 253_370_764_800_000_000  # the year 9999


class Order(Protocol[Position]):
    """A total order of a table's rows by time."""

    def position_of(self, row: Any) -> Position: ...

    def older_than(self, rows: QuerySet[Row], position: Position | None) -> QuerySet[Row]:
        """Return the rows older than ``position`` (all if None), newest first."""

    def newer_than(self, rows: QuerySet[Row], position: Position | None) -> QuerySet[Row]:
        """Return the rows newer than ``position`` (all if None), oldest first."""


class ByKey:
    """Order by a primary key that grows with time."""

    def position_of(self, row: Model) -> int:
        return int(row.pk)

    def older_than(self, rows: QuerySet[Row], position: int | None) -> QuerySet[Row]:
        return (rows if position is None else rows.filter(pk__lt=position)).order_by("-pk")

    def newer_than(self, rows: QuerySet[Row], position: int | None) -> QuerySet[Row]:
        return (rows if position is None else rows.filter(pk__gt=position)).order_by("pk")


class CursorError(ValueError):
    """The text is not a cursor that this server issued."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a row in time."""

    at: datetime
    pk: Any

    def __str__(self) -> str:
        return f"{(self.at - _EPOCH) // _MICROSECOND}.{self.pk}"

    @classmethod
    def parse(cls, text: str, to_pk: Callable[[str], Any] = str) -> Cursor:
        """Parse a cursor, converting the key with ``to_pk``. Raise CursorError if it is invalid."""
        microseconds, dot, pk = text.partition(".")
        try:
            if not (dot and pk and microseconds.isascii() and microseconds.isdecimal()) or "\0" in pk:
                raise ValueError
            value = int(microseconds[:20])
            if value > _MAX_MICROSECONDS:
                raise ValueError
            return cls(_EPOCH + value * _MICROSECOND, to_pk(pk))
        except ValueError:
            raise CursorError(f"`{text[:80]}` is not a valid cursor.") from None


@dataclass(frozen=True, slots=True)
class ByTime:
    """Order by (``field``, primary key)."""

    field: str

    def position_of(self, row: Model) -> Cursor:
        return Cursor(getattr(row, self.field), row.pk)

    def older_than(self, rows: QuerySet[Row], position: Cursor | None) -> QuerySet[Row]:
        if position is not None:
            beyond = Q(**{self.field: position.at, "pk__gte": position.pk})
            rows = rows.filter(
                Q(**{f"{self.field}__lte": position.at}), ~beyond
            )  # the first condition can use an index
        return rows.order_by(f"-{self.field}", "-pk")

    def newer_than(self, rows: QuerySet[Row], position: Cursor | None) -> QuerySet[Row]:
        if position is not None:
            beyond = Q(**{self.field: position.at, "pk__lte": position.pk})
            rows = rows.filter(Q(**{f"{self.field}__gte": position.at}), ~beyond)
        return rows.order_by(self.field, "pk")


def rows_between(
    rows: QuerySet[Row],
    order: Order[Position],
    *,
    size: int,
    is_ascending: bool = False,
    after: Position | None = None,
    before: Position | None = None,
) -> tuple[list[Row], bool]:
    """Return up to ``size`` rows between two cursors, and whether there are more. One query.

    They are the rows next to ``after``; without it, those next to ``before``; without both, the first ones.
    """
    forward, backward = order.older_than, order.newer_than
    if is_ascending:
        forward, backward = backward, forward
    if before is not None and after is None:
        found = list(backward(rows, before)[: size + 1])
        return found[:size][::-1], len(found) > size
    bounded = rows if before is None else backward(rows, before)
    found = list(forward(bounded, after)[: size + 1])
    return found[:size], len(found) > size


@dataclass(frozen=True, slots=True)
class KeysetPage(Generic[Row, Position]):
    """Rows, newest first. ``older`` and ``newer`` are the start positions of the adjacent pages, None at the ends."""

    rows: list[Row]
    older: Position | None
    newer: Position | None


def keyset_page(
    rows: QuerySet[Row],
    order: Order[Position],
    *,
    size: int,
    before: Position | None = None,
    after: Position | None = None,
) -> KeysetPage[Row, Position]:
    """Return the ``size`` rows just older than ``before``, or just newer than ``after``, or the newest. One query."""
    if after is not None:
        page, has_newer = rows_between(rows, order, size=size, before=after)
        has_older = True
    else:
        page, has_older = rows_between(rows, order, size=size, after=before)
        has_newer = before is not None
    if not page:
        return KeysetPage(page, older=None, newer=before)
    return KeysetPage(
        page,
        older=order.position_of(page[-1]) if has_older else None,
        newer=order.position_of(page[0]) if has_newer else None,
    )


class EstimatingPaginator(Paginator):  # type: ignore[type-arg]  # not generic at run time
    """Django's paginator, but the number of rows of a large unfiltered table is estimated instead of counted."""

    @cached_property
    def count(self) -> int:
        rows = cast("QuerySet[Any]", self.object_list)  # the admin never passes lists
        if not rows.query.where:
            estimate = estimated_rows(rows.model._meta.db_table)
            if estimate >= EXACT_BELOW:
                return estimate
        return super().count


def estimated_rows(table: str) -> int:
    """Return Postgres's estimate of the number of rows, or -1 if the table was never analysed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)", [f'"{table}"'])
        row = cursor.fetchone()
    return int(row[0]) if row else -1
