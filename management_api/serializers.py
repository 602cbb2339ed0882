"""Base serializers: strict about unknown fields, described for the OpenAPI document."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.contrib.auth.models import User
from django.db import models
from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail

from core.errors import MillmError

MAX_TEXT = 20_000
UNKNOWN = "unknown_parameter"


class TypedField:
    """A mixin for fields that would convert what they get: ``json_types`` are taken as they are."""

    json_types: tuple[type, ...]
    said: str

    def to_internal_value(self, data: Any) -> Any:
        is_flag = isinstance(data, bool) and bool not in self.json_types  # to Python, a bool is an int
        if is_flag or not isinstance(data, self.json_types):
            message = f"expected {self.said}, not {_kind(data)}."
            raise serializers.ValidationError(message, code="invalid_type")
        return super().to_internal_value(data)  # type: ignore[misc]  # a field's


class Text(TypedField, serializers.CharField):
    json_types, said = (str,), "a string"

    def __init__(self, **options: Any) -> None:
        options.pop("allow_unicode", None)  # a slug's; the model checks it
        options.setdefault("max_length", MAX_TEXT)
        super().__init__(**options)


class Integer(TypedField, serializers.IntegerField):
    json_types, said = (int,), "an integer"

    def __init__(self, **options: Any) -> None:
        options.setdefault("min_value", -(2**62))
        options.setdefault("max_value", 2**62)
        super().__init__(**options)


class Number(TypedField, serializers.FloatField):
    json_types, said = (int, float), "a number"

    def to_internal_value(self, data: Any) -> Any:
        number = super().to_internal_value(data)
        if not math.isfinite(number):  # 1e999 is valid JSON
            raise serializers.ValidationError("expected a finite number.", code="invalid_value")
        return number


class Flag(TypedField, serializers.BooleanField):
    json_types, said = (bool,), "true or false"


class Choice(TypedField, serializers.ChoiceField):
    json_types, said = (str,), "a string"


class DateTime(TypedField, serializers.DateTimeField):
    json_types, said = (str,), "a time as in ISO 8601"


class StrictInput(serializers.Serializer[Any]):
    """What a request may hold. Fields that it does not have are refused by name."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            message = f"Expected an object, not {_kind(data)}."
            raise serializers.ValidationError({"": [ErrorDetail(message, code="invalid_type")]})
        known = {name for name, field in self.fields.items() if not field.read_only}
        unknown = sorted(str(name) for name in data if name not in known)
        if unknown:
            names = ", ".join(sorted(known)) or "none"
            text = f"there is no such field; there are: {names}."
            raise serializers.ValidationError({name[:200]: [ErrorDetail(text, code=UNKNOWN)] for name in unknown[:10]})
        return super().to_internal_value(data)


class StrictModelInput(StrictInput, serializers.ModelSerializer[Any]):
    """The same with the fields of a model. What the model checks, its service checks."""

    serializer_field_mapping = {
        **serializers.ModelSerializer.serializer_field_mapping,
        models.CharField: Text,
        models.TextField: Text,
        models.SlugField: Text,
        models.IntegerField: Integer,
        models.PositiveIntegerField: Integer,
        models.PositiveBigIntegerField: Integer,
        models.SmallIntegerField: Integer,
        models.FloatField: Number,
        models.BooleanField: Flag,
        models.DateTimeField: DateTime,
    }
    serializer_choice_field = Choice


class Shown(serializers.ModelSerializer[Any]):
    """A row as it is answered; never read from a request."""

    def get_fields(self) -> Any:
        fields = super().get_fields()
        for field in fields.values():
            field.read_only = True
        return fields


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "something else")


F = TypeVar("F", bound=Callable[..., Any])
OBJECT: Any = OpenApiTypes.OBJECT


def described(**options: Any) -> Callable[[F], F]:
    """Return the keyword arguments of :func:`drf_spectacular.utils.extend_schema`."""
    decorate: Callable[[F], F] = extend_schema(**options)
    return decorate


def number_in_query(name: str) -> Any:
    """Describe a query parameter that is the number of a version."""
    return OpenApiParameter(name, {"type": "integer", "minimum": 1})


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
            raise MillmError(message, status=404, code="not_found", param=self.field_name)
        return row

    def to_representation(self, value: Any) -> Any:
        return value.pk
