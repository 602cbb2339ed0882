"""Pages of a table by the place of their first row: the ten thousandth page costs as much as the first.

No row is counted, and none is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from django.db.models import Model, QuerySet

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
