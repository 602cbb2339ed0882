"""Pages of a table by the place of their first row: the ten thousandth page costs as much as the first.

Rows are in the order of (time, primary key), newest first. No row is counted and none is passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

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
class KeysetPage(Generic[M]):
    """``older`` and ``newer`` are where the neighbouring pages begin, None at the ends."""

    rows: list[M]
    older: Cursor | None
    newer: Cursor | None


def keyset_page(
    rows: QuerySet[M],
    *,
    time_field: str,
    size: int,
    before: Cursor | None = None,
    after: Cursor | None = None,
) -> KeysetPage[M]:
    """The ``size`` rows next older than ``before``, or next newer than ``after``, or the newest; newest first."""
    if after is not None:
        found = list(newer_than(rows, after, time_field)[: size + 1])
        page = found[:size][::-1]
        has_newer, has_older = len(found) > size, True
    else:
        found = list(older_than(rows, before, time_field)[: size + 1])
        page = found[:size]
        has_newer, has_older = before is not None, len(found) > size
    if not page:
        return KeysetPage(page, older=None, newer=None)
    return KeysetPage(
        page,
        older=_cursor(page[-1], time_field) if has_older else None,
        newer=_cursor(page[0], time_field) if has_newer else None,
    )


def older_than(rows: QuerySet[M], cursor: Cursor | None, time_field: str) -> QuerySet[M]:
    """Newest first, from after ``cursor`` on."""
    if cursor is not None:
        beyond = Q(**{time_field: cursor.at, "pk__gte": cursor.pk})
        rows = rows.filter(Q(**{f"{time_field}__lte": cursor.at}), ~beyond)  # the first half is what an index finds
    return rows.order_by(f"-{time_field}", "-pk")


def newer_than(rows: QuerySet[M], cursor: Cursor, time_field: str) -> QuerySet[M]:
    """Oldest first, from after ``cursor`` on."""
    beyond = Q(**{time_field: cursor.at, "pk__lte": cursor.pk})
    return rows.filter(Q(**{f"{time_field}__gte": cursor.at}), ~beyond).order_by(time_field, "pk")


def _cursor(row: Model, time_field: str) -> Cursor:
    return Cursor(getattr(row, time_field), row.pk)
