"""Pages by the place of a row: each row once, in both directions, whatever the ties in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.pagination import ByTime, Cursor, CursorError, KeysetPage, keyset_page
from openai_api.models import RequestLog

START = datetime(2026, 1, 1, tzinfo=UTC)


def page(size: int, **place: Cursor | None) -> KeysetPage[RequestLog, Cursor]:
    return keyset_page(RequestLog.objects.all(), ByTime("created_at"), size=size, **place)


@pytest.fixture
def seconds(db: None) -> list[int]:
    """Many requests in the same moment, as from a batch."""
    found = [0, 1, 1, 1, 1, 1, 2, 3, 3, 3, 4]
    RequestLog.objects.bulk_create(
        RequestLog(id=f"r{n}", created_at=START + timedelta(seconds=s), endpoint="/v1/models", status=200)
        for n, s in enumerate(found)
    )
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11, 20])
def test_each_row_is_on_one_page_downwards_and_upwards(seconds: list[int], size: int):
    expected = [row.pk for row in RequestLog.objects.order_by("-created_at", "-pk")]
    down, before, found = [], None, page(size)
    assert found.newer is None
    while True:
        down += [row.pk for row in found.rows]
        if found.older is None:
            break
        before = found.older
        found = page(size, before=before)
    assert down == expected
    up = [[row.pk for row in found.rows]]
    while found.newer is not None:
        found = page(size, after=found.newer)
        up.insert(0, [row.pk for row in found.rows])
    assert [pk for part in up for pk in part] == expected


def test_rows_that_come_in_between_move_nothing(seconds: list[int]):
    first = page(4)
    RequestLog.objects.create(id="new", created_at=START + timedelta(days=1), endpoint="/v1/models", status=200)
    second = page(4, before=first.older)
    assert {row.pk for row in first.rows}.isdisjoint(row.pk for row in second.rows)
    assert "new" not in {row.pk for row in second.rows}


def test_an_empty_table_has_no_neighbours(db: None):
    assert page(5) == KeysetPage([], older=None, newer=None)


@given(
    st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=365 * 8_000)),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=64),
)
def test_a_cursor_is_read_as_it_was_written(since: timedelta, pk: str):
    at = datetime(1970, 1, 1, tzinfo=UTC) + since
    assert Cursor.parse(str(Cursor(at, pk))) == Cursor(at, pk)


@pytest.mark.parametrize(
    "text",
    ["", "x", ".", "1.", ".a", "-1.a", "1e5.a", "٣.a", "9" * 30 + ".a", "1.\0", "253402300800000000.a", "1" * 5000],
)
def test_what_is_no_place_is_refused(text: str):
    with pytest.raises(CursorError):
        Cursor.parse(text)


def test_a_key_of_another_type():
    assert Cursor.parse("5.7", int).pk == 7
    with pytest.raises(CursorError):
        Cursor.parse("5.x", int)
