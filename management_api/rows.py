"""Fields of a request that name a row, among those that its caller may see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from openai_api.http.errors import ApiError

Find = Callable[[User], QuerySet[Any]]
_MAX_ID = 2**62


@extend_schema_field({"type": "integer"})
class Row(serializers.Field[Any, Any, Any, Any]):
    """By its id. What does not exist and what may not be seen are the same 404."""

    def __init__(self, *, find: Find, **options: Any) -> None:
        self._find = find
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, bool) or not isinstance(data, int):
            raise serializers.ValidationError("expected an id, a number.", code="invalid_type")
        row = self._find(self.context["request"].user).filter(pk=data).first() if 0 <= data < _MAX_ID else None
        if row is None:
            message = f"{self.field_name}: there is no such object, or you may not see it."
            raise ApiError(404, message, code="not_found", param=self.field_name)
        return row

    def to_representation(self, value: Any) -> Any:
        return value.pk
