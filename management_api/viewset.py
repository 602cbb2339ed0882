"""The base class of the resources of /api."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import IO, Any, ClassVar, TypeVar

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from rest_framework import serializers
from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from audit.origin import acting, current_origin
from core.ids import new_id
from management_api.authentication import ActionPermission, KeyAuthentication, SessionAuthentication
from management_api.paging import CursorPages
from management_api.serializers import StrictInput
from openai_api.http.errors import invalid_json, request_too_large
from openai_api.http.json_body import parse_json
from openai_api.keys.record import KeyRecord


class StrictJSONParser(BaseParser):
    """Refuses NaN, lone surrogates and deep nesting. A missing body is an empty object."""

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit: int = settings.MILLM_MAX_BODY_BYTES
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise request_too_large(limit)
        value = parse_json(body) if body.strip() else {}
        if not isinstance(value, dict):
            raise invalid_json("The body must be a JSON object.")
        return value


M = TypeVar("M", bound=Model)
PAGING = frozenset({"limit", "cursor"})


class Filters(StrictInput):
    """The query parameters of a list. Unlike values in a body, they are strings and are converted."""


# Not a docstring, because drf-spectacular would use it to describe operations without one.
# ``permissions`` maps each action to its permission, ``filters`` describes the query of the list, ``ordering`` its
# order. ``rows`` returns the rows that the caller may see: no others can be found, counted or chosen.
class Resource(GenericViewSet[Any]):
    authentication_classes = (KeyAuthentication, SessionAuthentication)
    permission_classes = (ActionPermission,)
    parser_classes = (StrictJSONParser,)
    renderer_classes = (JSONRenderer,)
    pagination_class = CursorPages
    lookup_value_regex = "[0-9]+"
    permissions: ClassVar[Mapping[str, str | None]]
    filters: ClassVar[type[Filters]] = Filters
    ordering: ClassVar[tuple[str, ...]] = ("-pk",)

    def rows(self, user: User) -> QuerySet[Any]:
        raise NotImplementedError

    def filter_rows(self, rows: QuerySet[Any], query: Mapping[str, Any]) -> QuerySet[Any]:
        """Apply the filters of the list. By default, each one is the value of a field."""
        return rows.filter(**query)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._frame = ExitStack()  # safe on the instance, which handles a single request

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Set the key for the audit trail once the request is authenticated."""
        super().initial(request, *args, **kwargs)
        if isinstance(request.auth, KeyRecord):
            self._frame.enter_context(acting(replace(current_origin(), key=request.auth.name)))

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        self._frame.close()
        response.headers["x-request-id"] = current_origin().request_id or new_id("req_")
        return super().finalize_response(request, response, *args, **kwargs)

    @property
    def user(self) -> User:
        assert isinstance(self.request.user, User)  # ActionPermission has checked it
        return self.request.user

    def get_queryset(self) -> QuerySet[Any]:
        return self.rows(self.user)

    def list(self, request: Request) -> Response:
        """List the objects."""
        rows = self.filter_rows(self.get_queryset(), self.query())
        page = self.paginate_queryset(rows)
        return self.get_paginated_response(self.get_serializer(page, many=True).data)

    def retrieve(self, request: Request, pk: str) -> Response:
        """Return an object by its id."""
        return Response(self.get_serializer(self.get_object()).data)

    def options(self, request: Request, *args: Any, **kwargs: Any) -> Response:  # type: ignore[override]
        """Answer with the Allow header only. /openapi.json describes the bodies."""
        return Response(status=204)

    def query(self) -> dict[str, Any]:
        """Return the validated filters of the list."""
        values = {name: value for name, value in self.request.query_params.items() if name not in PAGING}
        return self._checked(self.filters(data=values))

    def read(self, kind: type[serializers.Serializer[Any]], **options: Any) -> dict[str, Any]:
        """Return the validated body. Rows that it names must be visible to the caller."""
        return self._checked(kind(data=self.request.data, context=self.get_serializer_context(), **options))

    def answer(self, row: Any, status: int = 200) -> Response:
        return Response(self.get_serializer(row).data, status=status)

    @staticmethod
    def _checked(serializer: serializers.BaseSerializer[Any]) -> dict[str, Any]:
        serializer.is_valid(raise_exception=True)
        values: dict[str, Any] = serializer.validated_data
        return values
