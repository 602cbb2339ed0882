"""Pages of a table by the place of their first row: the ten thousandth page costs as much as the first.

No row is counted, and none is passed over.
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
Place = TypeVar("Place")


class Order(Protocol[Place]):
    """An order in which a table has each row at one place, newest first."""

    def place_of(self, row: Any) -> Place: ...

    def older_than(self, rows: QuerySet[Row], place: Place | None) -> QuerySet[Row]:
        """Newest first, from after ``place`` on, or from the beginning."""

    def newer_than(self, rows: QuerySet[Row], place: Place) -> QuerySet[Row]:
        """Oldest first, from after ``place`` on."""


@dataclass(frozen=True, slots=True)
class KeysetPage(Generic[Row, Place]):
    """``older`` and ``newer`` are where the neighbouring pages begin, None at the ends."""

    rows: list[Row]
    older: Place | None
    newer: Place | None


class ByKey:
    """For tables whose keys grow with time."""

    def place_of(self, row: Model) -> int:
        return int(row.pk)

    def older_than(self, rows: QuerySet[Row], place: int | None) -> QuerySet[Row]:
        return (rows if place is None else rows.filter(pk__lt=place)).order_by("-pk")

    def newer_than(self, rows: QuerySet[Row], place: int) -> QuerySet[Row]:
        return rows.filter(pk__gt=place).order_by("pk")


def keyset_page(
    rows: QuerySet[Row], order: Order[Place], *, size: int, before: Place | None = None, after: Place | None = None
) -> KeysetPage[Row, Place]:
    """The ``size`` rows next older than ``before``, or next newer than ``after``, or the newest. One query."""
    if after is not None:
        found = list(order.newer_than(rows, after)[: size + 1])
        page = found[:size][::-1]
        has_newer, has_older = len(found) > size, True
    else:
        found = list(order.older_than(rows, before)[: size + 1])
        page = found[:size]
        has_newer, has_older = before is not None, len(found) > size
    if not page:
        return KeysetPage(page, older=None, newer=before)
    return KeysetPage(
        page,
        older=order.place_of(page[-1]) if has_older else None,
        newer=order.place_of(page[0]) if has_newer else None,
    )


M = TypeVar("M", bound=Model)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_MICROSECONDS = 253_370_764_800_000_000  # the year 9999


class CursorError(ValueError):
    """A cursor that no page of ours named."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place of a row."""

    at: datetime
    pk: Any

    def __str__(self) -> str:
        return f"{(self.at - _EPOCH) // _MICROSECOND}.{self.pk}"

    @classmethod
    def parse(cls, text: str, to_pk: Callable[[str], Any] = str) -> Cursor:
        """``to_pk`` makes the key's type of its text. Raises CursorError."""
        microseconds, dot, pk = text.partition(".")
        try:
            if not (dot and pk and microseconds.isascii() and microseconds.isdecimal()) or "\0" in pk:
                raise ValueError
            value = int(microseconds[:20])
            if value > _MAX_MICROSECONDS:
                raise ValueError
            return cls(_EPOCH + value * _MICROSECOND, to_pk(pk))
        except ValueError:
            raise CursorError(f"“{text[:80]}” is no place in the list.") from None


@dataclass(frozen=True, slots=True)
class ByTime:
    """Rows in the order of (``field``, primary key)."""

    field: str

    def place_of(self, row: Model) -> Cursor:
        return Cursor(getattr(row, self.field), row.pk)

    def older_than(self, rows: QuerySet[M], place: Cursor | None) -> QuerySet[M]:
        """Newest first, from after ``place`` on."""
        if place is not None:
            beyond = Q(**{self.field: place.at, "pk__gte": place.pk})
            rows = rows.filter(Q(**{f"{self.field}__lte": place.at}), ~beyond)  # an index finds the first half
        return rows.order_by(f"-{self.field}", "-pk")

    def newer_than(self, rows: QuerySet[M], place: Cursor) -> QuerySet[M]:
        """Oldest first, from after ``place`` on."""
        beyond = Q(**{self.field: place.at, "pk__lte": place.pk})
        return rows.filter(Q(**{f"{self.field}__gte": place.at}), ~beyond).order_by(self.field, "pk")


EXACT_BELOW = 50_000  # rows; a larger table's size is Postgres' own estimate


class EstimatingPaginator(Paginator):  # type: ignore[type-arg]  # it takes none at run time
    @cached_property
    def count(self) -> int:
        rows = cast("QuerySet[Any]", self.object_list)  # the admin gives no lists
        if not rows.query.where:
            estimate = estimated_rows(rows.model._meta.db_table)
            if estimate >= EXACT_BELOW:
                return estimate
        return super().count


def estimated_rows(table: str) -> int:
    """Postgres' estimate of a table's size, -1 when it was never analysed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)", [f'"{table}"'])
        row = cursor.fetchone()
    return int(row[0]) if row else -1
