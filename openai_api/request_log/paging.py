"""Places of rows in time, for pages of :mod:`audit.keyset`, newest first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar, cast

from django.core.paginator import Paginator
from django.db import connection
from django.db.models import Model, Q, QuerySet

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


class LogPaginator(Paginator):  # type: ignore[type-arg]  # it takes none at run time
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
