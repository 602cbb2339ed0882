"""drf-spectacular's decorators with types, and its names for what an answer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema

F = TypeVar("F", bound=Callable[..., Any])
OBJECT: Any = OpenApiTypes.OBJECT


def described(**options: Any) -> Callable[[F], F]:
    """What :func:`drf_spectacular.utils.extend_schema` takes."""
    decorate: Callable[[F], F] = extend_schema(**options)
    return decorate


def number_in_query(name: str) -> Any:
    """The number of a version, which begins at 1."""
    return OpenApiParameter(name, {"type": "integer", "minimum": 1})
