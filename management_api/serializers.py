"""Base serializers, strict about types and unknown fields."""

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
    """A mixin for fields that would convert other types: only values of ``json_types`` are accepted."""

    json_types: tuple[type, ...]
    type_name: str

    def to_internal_value(self, data: Any) -> Any:
        is_flag = isinstance(data, bool) and bool not in self.json_types  # in Python, a bool is an int
        if is_flag or not isinstance(data, self.json_types):
            message = f"must be {self.type_name}, got {_kind(data)}."
            raise serializers.ValidationError(message, code="invalid_type")
        return super().to_internal_value(data)  # type: ignore[misc]  # defined by the field class


class Text(TypedField, serializers.CharField):
    json_types, type_name = (str,), "a string"

    def __init__(self, **options: Any) -> None:
        options.pop("allow_unicode", None)  # an option of slugs, which the model validates
        options.setdefault("max_length", MAX_TEXT)
        super().__init__(**options)


class Integer(TypedField, serializers.IntegerField):
    json_types, type_name = (int,), "an integer"

    def __init__(self, **options: Any) -> None:
        options.setdefault("min_value", -(2**62))
        options.setdefault("max_value", 2**62)
        super().__init__(**options)


class Number(TypedField, serializers.FloatField):
    json_types, type_name = (int, float), "a number"

    def to_internal_value(self, data: Any) -> Any:
        number = super().to_internal_value(data)
        if not math.isfinite(number):  # 1e999 is valid JSON
            raise serializers.ValidationError("must be a finite number.", code="invalid_value")
        return number


class Flag(TypedField, serializers.BooleanField):
    json_types, type_name = (bool,), "true or false"


class Choice(TypedField, serializers.ChoiceField):
    json_types, type_name = (str,), "a string"


class DateTime(TypedField, serializers.DateTimeField):
    json_types, type_name = (str,), "an ISO 8601 date and time"


# The base serializers have no docstrings: drf-spectacular would copy them into the schemas of all subclasses.
class StrictInput(serializers.Serializer[Any]):  # a request body; unknown fields are an error
    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            message = f"The value must be an object, got {_kind(data)}."
            raise serializers.ValidationError({"": [ErrorDetail(message, code="invalid_type")]})
        known = {name for name, field in self.fields.items() if not field.read_only}
        unknown = sorted(str(name) for name in data if name not in known)
        if unknown:
            names = ", ".join(sorted(known)) or "none"
            text = f"unknown field. Supported: {names}."
            raise serializers.ValidationError({name[:200]: [ErrorDetail(text, code=UNKNOWN)] for name in unknown[:10]})
        return super().to_internal_value(data)


class StrictModelInput(StrictInput, serializers.ModelSerializer[Any]):  # its service validates the model's constraints
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


class ReadSerializer(serializers.ModelSerializer[Any]):  # a row in a response; never parsed from a request
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
    return names.get(type(value), "another type")


F = TypeVar("F", bound=Callable[..., Any])
OBJECT: Any = OpenApiTypes.OBJECT


def described(**options: Any) -> Callable[[F], F]:
    """Describe an operation for the OpenAPI document. A typed :func:`drf_spectacular.utils.extend_schema`."""
    decorate: Callable[[F], F] = extend_schema(**options)
    return decorate


def described_field(schema: Any) -> Callable[[F], F]:
    """Describe the values of a method field. A typed :func:`drf_spectacular.utils.extend_schema_field`."""
    decorate: Callable[[F], F] = extend_schema_field(schema)
    return decorate


def number_in_query(name: str) -> Any:
    """Describe a query parameter that is the number of a version."""
    return OpenApiParameter(name, {"type": "integer", "minimum": 1})


Find = Callable[[User], QuerySet[Any]]
_MAX_ID = 2**62


@extend_schema_field({"type": "integer"})
class VisibleRowField(serializers.Field[Any, Any, Any, Any]):
    """A visible row, given by its id. 404 both for rows that do not exist and for rows that the user may not see."""

    def __init__(self, *, find: Find, **options: Any) -> None:
        self._find = find
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, bool) or not isinstance(data, int):
            raise serializers.ValidationError("must be an integer id.", code="invalid_type")
        row = self._find(self.context["request"].user).filter(pk=data).first() if 0 <= data < _MAX_ID else None
        if row is None:
            message = f"{self.field_name}: the object does not exist, or you do not have access to it."
            raise MillmError(message, status=404, code="not_found", param=self.field_name)
        return row

    def to_representation(self, value: Any) -> Any:
        return value.pk


class FormRowField(VisibleRowField):
    """A visible row in a form, whose values are strings."""

    def to_internal_value(self, data: Any) -> Any:
        text = str(data)
        return super().to_internal_value(int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else data)
