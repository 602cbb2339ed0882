"""Cursor pagination: any page of a large table costs as much as the first one, and no rows are counted."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response

from openai_api.http.errors import invalid

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_CURSOR = 500


class CursorPages(CursorPagination):
    """Pages of ``limit`` rows. ``next`` is the ``cursor`` of the next page, null on the last one."""

    page_size = DEFAULT_LIMIT
    max_page_size = MAX_LIMIT
    page_size_query_param = "limit"
    cursor_query_param = "cursor"

    def get_page_size(self, request: Request) -> int:
        return read_limit(request)

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: Any) -> tuple[str, ...]:
        return cast("tuple[str, ...]", view.ordering)

    def decode_cursor(self, request: Request) -> Any:
        if len(request.query_params.get(self.cursor_query_param, "")) > MAX_CURSOR:
            raise _bad_cursor()
        try:
            return super().decode_cursor(request)
        except NotFound:
            raise _bad_cursor() from None

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        try:
            return super().paginate_queryset(queryset, request, view) or []
        except (
            ValueError,
            TypeError,
            OverflowError,
            ValidationError,
        ) as error:  # an invalid cursor, or one of another list
            raise _bad_cursor() from error

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"object": "list", "data": data, "next": _cursor_of(self.get_next_link())})

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        parameters = cast("list[dict[str, Any]]", super().get_schema_operation_parameters(view))
        limits = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
        return [{**each, "schema": limits} if each["name"] == "limit" else each for each in parameters]

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["object", "data", "next"],
            "properties": {
                "object": {"type": "string", "enum": ["list"]},
                "data": schema,
                "next": {"type": ["string", "null"], "description": "Cursor of the next page, null on the last page."},
            },
        }


def read_limit(request: Request) -> int:
    """Return the query parameter ``limit``. Raise MillmError unless it is between 1 and :data:`MAX_LIMIT`."""
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MAX_LIMIT):
        raise invalid(f"`limit` must be between 1 and {MAX_LIMIT}, got `{text[:40]}`.", param="limit")
    return int(text)


def _bad_cursor() -> Exception:
    return invalid("`cursor` must be the value of `next` of the previous page.", param="cursor")


def _cursor_of(link: str | None) -> str | None:
    return parse_qs(urlsplit(link).query)["cursor"][0] if link else None
