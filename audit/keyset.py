"""Pages of a table in the order of its key, without OFFSET or COUNT: as fast at the end as at the beginning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from django.db.models import Model, QuerySet

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, slots=True)
class KeysetPage(Generic[Row]):
    """Newest first. ``older`` and ``newer`` are what the links to the neighbouring pages name; None at an end."""

    rows: tuple[Row, ...]
    older: int | None
    newer: int | None


def keyset_page(
    rows: QuerySet[Row], *, size: int, before: int | None = None, after: int | None = None
) -> KeysetPage[Row]:
    """The page that ends before the key ``before``, or the one right after ``after``, or the newest. One query."""
    if after is not None:
        found = list(rows.filter(pk__gt=after).order_by("pk")[: size + 1])
        has_newer, shown = len(found) > size, tuple(reversed(found[:size]))
        return KeysetPage(shown, shown[-1].pk if shown else None, shown[0].pk if shown and has_newer else None)
    if before is not None:
        rows = rows.filter(pk__lt=before)
    found = list(rows.order_by("-pk")[: size + 1])
    shown = tuple(found[:size])
    has_newer = before is not None
    return KeysetPage(
        shown,
        shown[-1].pk if len(found) > size else None,
        (shown[0].pk if shown else before) if has_newer else None,
    )
